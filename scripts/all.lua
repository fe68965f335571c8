-- Takes several locks for their holds, or none of them. All locks are in one slot.
--
-- KEYS     base, queue; of each lock
-- ARGV     publish command; the hold of each lock; the lease ms of each lock
-- Returns  1 the holds have the locks, with new leases; 3 call again: only dead waiters so far; or
--          {status, owner, remaining ms of a lease, number of a lock}:
--          1  the holds have the locks, some had theirs before; remaining is of the shortest lease
--          0  the lock of that number is busy, and no hold has got a lock
-- Idempotent because a hold that has its lock keeps its lease.
local locks, publish = #KEYS / 2, ARGV[1]
local counts = {} -- of the holds that have their locks
for i = 1, call('EXISTS', unpack(KEYS)) > 0 and locks or 0 do
  local base, queue, hold = KEYS[2 * i - 1], KEYS[2 * i], ARGV[1 + i]
  if call('EXISTS', base, queue) > 0 then
    local has, count = owner(base)
    if not has then -- the lease of the last owner ran out: whoever queues comes first
      local more
      has, more = grant(base, queue, publish, call('ZCARD', queue))
      if more then
        return 3
      end
    end
    if has and has ~= hold then
      return {0, has, call('PTTL', base), i}
    end
    counts[i] = count
  end
end

local shortest = math.huge
for i = 1, locks do
  local base, hold, ttl = KEYS[2 * i - 1], ARGV[1 + i], ARGV[1 + locks + i]
  if counts[i] then
    set(base, hold, counts[i]) -- a write, as a replica that is behind must say READONLY
    ttl = call('PTTL', base)
  else
    enter(base, hold, ttl)
  end
  shortest = math.min(shortest, ttl)
end
return next(counts) and {1, '', shortest, 0} or 1
