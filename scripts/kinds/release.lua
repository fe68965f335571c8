-- Takes holds out of their locks, and lets the first waiters in.
--
-- Returns  1 done, 0 the hold is gone, 3 call again: as many were dropped as one call may
-- Idempotent because a hold that is gone never comes back.
--
-- One lock without a queue needs no function of lib, as in acquire. This is the end of leave.
local waiting = #KEYS == 4 and redis.call('ZCARD', KEYS[3])
if waiting == 0 then
  local member = ARGV[2] .. '|' .. ARGV[4]
  if ARGV[4] ~= 'r' then
    redis.call('ZREM', KEYS[2], member)
  end
  return redis.call('ZREM', KEYS[1], member)
end

-- lib
return each(#KEYS / 4, function(i)
  local lock, a = unit(i)
  lock.waiting = waiting
  return leave(lock, ARGV[1], a)
end)
