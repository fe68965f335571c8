-- Takes holds out of their locks, and has their clients look at once.
--
-- ARGV     ... control channel of the client
-- Returns  1 done, 0 the hold is gone, 3 call again: as many were dropped as one call may
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS / 4, function(i)
  local lock, a, control = unit(i)
  local left = leave(lock, ARGV[1], a)
  if left == 1 then
    tell('PUBLISH', control, a.hold) -- else the client finds out with its next renewal
  end
  return left
end)
