-- Frees the locks of holds, and grants each to its first waiter.
--
-- KEYS     base, queue
-- ARGV     publish command; hold
-- Returns  1 freed, 0 the hold is gone, 3 call again: only dead waiters so far
-- Idempotent because a hold that is gone never comes back.
--
-- One lock without a queue needs no function of lib, as in acquire.
local waiting = #KEYS == 2 and redis.call('ZCARD', KEYS[2])
if waiting == 0 then
  return redis.call('HDEL', KEYS[1], ARGV[2])
end

-- lib
return each(#KEYS / 2, function(i)
  return release(KEYS[2 * i - 1], KEYS[2 * i], ARGV[1], ARGV[i + 1], waiting)
end)
