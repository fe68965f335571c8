-- Frees the locks of holds by their base keys alone. While a slot migrates, Redis refuses a call
-- with a key that does not exist, and a lock without waiters has no queue.
--
-- KEYS     base
-- ARGV     publish command; hold
-- Returns  1 freed, 0 the hold is gone, 3 call again: only dead waiters so far
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS, function(i)
  local base, hold = KEYS[i], ARGV[i + 1]
  local queue = base .. ':queue'
  if redis.pcall('EXISTS', queue) == 1 then -- the slot migrates no more, and somebody waits
    return release(base, queue, ARGV[1], hold)
  end
  return call('HDEL', base, hold)
end)
