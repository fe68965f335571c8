-- Takes holds out of their locks, and lets the first waiters in.
--
-- Returns  1 done, 0 the hold is gone, 3 call again: as many were dropped as one call may
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS / 4, function(i)
  local lock, a = unit(i)
  return leave(lock, ARGV[1], a)
end)
