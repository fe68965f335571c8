-- Takes back whatever holds may have left: a hold, or a place in the queue.
--
-- Returns  1 taken back, 0 nothing was there, 3 call again: as many were dropped as one call may
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS / 4, function(i)
  local lock, a = unit(i)
  local waited = call('ZREM', lock.queue, placeOf(a)) -- whoever waits behind may fit
  local left = leave(lock, ARGV[1], a)
  return left == 0 and waited or left
end)
