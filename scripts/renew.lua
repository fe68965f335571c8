-- Sets the counts and the leases of holds, in both layouts.
--
-- KEYS     base
-- ARGV     hold, lease ms (0: leave the lease as it is), count
-- Returns  1 done, 0 the hold is gone
-- Idempotent because both are set, and a lease only moves later.
return each(#KEYS, function(i)
  local base, hold, ttl, count = KEYS[i], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local known = call('HGET', base, hold)
  if not known then
    return call('HDEL', base, hold) -- 0, or READONLY
  end
  local isShort = ttl > 0 and call('PTTL', base) < ttl
  if known ~= count or not isShort then -- a write: WAIT looks only at the writes of its own connection
    set(base, hold, count)
  end
  if isShort then
    call('PEXPIRE', base, ttl)
  end
  return 1
end)
