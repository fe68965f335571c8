-- Leaves one entry of a hold, or frees the lock and grants it to the first waiter.
--
-- KEYS     base, queue, token
-- ARGV     hold, target count, step, lease ms (0: leave it alone), publish command
-- Returns  1 done, 0 the hold is not the owner (nothing was changed)
-- Idempotent because the count is set, and because a hold is never used again once it is gone.

local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]
local hold, target, step = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local head

-- The common case first, before the rest is even defined: the last entry is left and nobody waits.
if target == 0 then
  head = redis.call('ZPOPMIN', queue)
  -- What cannot be done leaves everything as it was: a token key of another type, a lock that is not ours.
  local token = head[1] and redis.pcall('GET', token_key)
  local left = type(token) == 'table' and token or redis.pcall('HDEL', base, hold)
  if left ~= 1 then
    if head[1] then
      redis.call('ZADD', queue, head[2], head[1])
    end
    return left
  end
  if step > 2 then
    redis.call('DEL', base) -- the hold was entered again, so its step is there too
  end
  if not head[1] then
    return 1
  end
end

--- include enter
--- include owner
--- include grant

if target == 0 then
  grant(head[1], base, queue, token_key, ARGV[5])
  return 1
end
local held_by, _, last = owner(base)
if held_by ~= hold then
  return 0
end
update(base, hold, target, step, last, tonumber(ARGV[4]))
return 1
