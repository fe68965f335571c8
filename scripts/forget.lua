-- Takes back whatever holds may have left: a lock, or a place in the queue.
--
-- KEYS     base, queue
-- ARGV     publish command; hold, lease ms
-- Returns  1 taken back, 0 nothing was there, 3 call again: only dead waiters so far
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS / 2, function(i)
  local base, queue, hold, ttl = KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i], ARGV[2 * i + 1]
  if call('HEXISTS', base, hold) == 1 then
    return release(base, queue, ARGV[1], hold)
  end
  local left, more = call('ZREM', queue, hold .. '|' .. ttl), false
  if call('EXISTS', base) == 0 then -- a lost key leaves a queue that nobody serves
    more = select(2, grant(base, queue, ARGV[1], call('ZCARD', queue)))
  end
  return more and 3 or left
end)
