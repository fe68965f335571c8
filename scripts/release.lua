-- Leaves one entry of a hold, or frees the lock and grants it to the first waiter.
--
-- KEYS     base, queue, token
-- ARGV     hold; target count (0), step (2), lease ms (0: leave it alone), publish command (PUBLISH). What is left out at the
--          end has the value in brackets.
-- Returns  1 done, 0 the hold is not the owner (nothing was changed)
-- Idempotent because the count is set, and because a hold is never used again once it is gone.

local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]
local hold = ARGV[1]

-- The common case first, before the rest is even defined: the last entry is left and nobody waits.
if (ARGV[2] or '0') == '0' and redis.call('EXISTS', queue) == 0 then
  local left = redis.call('HDEL', base, hold)
  if left == 1 and (ARGV[3] or '2') ~= '2' then
    redis.call('DEL', base) -- the hold was entered again, so its step is there too
  end
  return left
end

--- include enter
--- include owner
--- include grant

local target, step = tonumber(ARGV[2] or 0), tonumber(ARGV[3] or 2)
local held_by, _, last = owner(base)
if held_by ~= hold then
  return 0
end
if target > 0 then
  update(base, hold, target, step, last, tonumber(ARGV[4] or 0))
else
  last_token(token_key) -- must be one
  grant(base, queue, token_key, ARGV[5] or 'PUBLISH', nil, hold)
end
return 1
