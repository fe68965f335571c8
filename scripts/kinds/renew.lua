-- Sets the leases of holds.
--
-- ARGV     ... lease ms: 0 leaves the lease as it is
-- Returns  1 done, 0 the hold is gone
-- Idempotent because a lease only moves later.
return each(#KEYS / 4, function(i)
  local lock, a = unit(i)
  local ending, now = tonumber(call('ZSCORE', lock.base, a.member) or 0), clock(lock)
  if ending <= now then
    return call('ZREM', lock.base, '') -- 0, or READONLY
  elseif a.ttl > 0 and ending < now + a.ttl then
    write(lock.base)
    call('ZADD', lock.base, now + a.ttl, a.member)
    outlive(lock.base, a.ttl)
    outlive(lock.limits, a.ttl)
  elseif a.ttl > 0 then
    call('PEXPIRE', lock.base, math.max(call('PTTL', lock.base), ending - now)) -- a write, for WAIT
  end
  return 1
end)
