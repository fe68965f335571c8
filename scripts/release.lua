-- Leaves one entry of a hold, or frees the lock and grants it to the first waiter.
--
-- KEYS     base, queue, token
-- ARGV     hold, target count, step, lease ms (0: leave it alone), publish command
-- Returns  1 done, 0 the hold is not the owner (nothing was changed)
-- Idempotent because the count is set, and because a hold is never used again once it is gone.

local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]
local hold, target, step = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local head

-- The common case first, before the rest is even defined: the last entry is left and nobody waits. The reads come before
-- the writes: a key of another type ends the script before anything has changed.
if target == 0 then
  head = redis.call('ZRANGE', queue, 0, 0)[1]
  if head then
    redis.call('GET', token_key)
  end
  if redis.call('HDEL', base, hold) == 0 then
    return 0
  end
  if step > 2 then
    redis.call('DEL', base) -- the hold was entered again, so its step is there too
  end
  if not head then
    return 1
  end
end

--- include enter
--- include owner
--- include grant

if target == 0 then
  redis.call('ZREM', queue, head)
  grant(head, base, queue, token_key, ARGV[5])
  return 1
end
local held_by, _, last = owner(base)
if held_by ~= hold then
  return 0
end
update(base, hold, target, step, last, tonumber(ARGV[4]))
return 1
