-- Takes the places of holds that were passed a lease out of queues, and frees the lock of the lease,
-- as release does.
--
-- KEYS     base, queue
-- ARGV     publish command; hold of the lease, lease ms of the places, their holds, separated by spaces
-- Returns  1 freed, 0 the hold is gone, 3 call again: only dead waiters so far
-- Idempotent because neither a hold that is gone nor the place of a wait that is over comes back.
return each(#KEYS / 2, function(i)
  local base, queue, places = KEYS[2 * i - 1], KEYS[2 * i], {}
  local hold, ttl, served = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  for one in string.gmatch(served, '%S+') do
    places[#places + 1] = one .. '|' .. ttl
  end
  local waiting = call('ZCARD', queue)
  if waiting > 0 then
    waiting = waiting - call('ZREM', queue, unpack(places))
  end
  return release(base, queue, ARGV[1], hold, waiting)
end)
