-- Takes a lock for a hold, or joins the queue.
--
-- KEYS     base, queue
-- ARGV     publish command; hold, lease ms, arrival: '' do not queue, '0' queue for the first time,
--          else the arrival of an earlier reply, for the same place
-- Returns  {status, owner, remaining ms of its lease, arrival, position}, or the status alone:
--          1  the hold has the lock, with a new lease; {1, hold, remaining}: had the lock before
--          0  busy, and not queued: unwanted, or nothing hears the channel of the client here
--          2  busy, and queued; an arrival below 0 says that the place was lost, and is back
--          3  only dead waiters so far: call again
-- Idempotent because a hold that has the lock keeps its lease, and a waiter keeps its place.
--
-- One lock that is free and has no queue needs no function of lib, which Redis makes anew for each call.
local exist = #KEYS == 2 and redis.call('EXISTS', KEYS[1], KEYS[2])
if exist == 0 then
  redis.call('HSET', KEYS[1], ARGV[2], '1')
  if redis.pcall('PEXPIRE', KEYS[1], ARGV[3]) == 1 then
    return 1
  end
  redis.call('HDEL', KEYS[1], ARGV[2]) -- enter meets the same error, and raises it
end

-- lib
return each(#KEYS / 2, function(i)
  local base, queue, publish = KEYS[2 * i - 1], KEYS[2 * i], ARGV[1]
  local hold, ttl, arrival = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  if (exist or call('EXISTS', base, queue)) == 0 then
    enter(base, hold, ttl)
    return 1
  end

  local has, count = owner(base)
  if has == hold then
    set(base, hold, count) -- WAIT looks only at the writes of its own connection
    return {1, hold, call('PTTL', base)}
  elseif not has then -- the lease of the last owner ran out: whoever queues comes first
    local heir, more = grant(base, queue, publish, call('ZCARD', queue), nil, hold)
    if more then
      return 3
    elseif not heir then
      enter(base, hold, ttl)
    end
    if not heir or heir == hold then
      return 1
    end
    has = heir
  end

  local remaining = call('PTTL', base)
  if arrival == '' or not reach(publish, base .. ':' .. string.match(hold, '^(.+):%d+:%d+$')) then
    return {0, has, remaining}
  end
  local member, position = hold .. '|' .. ttl, nil
  if arrival == '0' then
    local time = call('TIME')
    arrival = time[1] * 1000000 + time[2] + i -- units of one call keep their order
    if call('ZADD', queue, 'NX', arrival, member) == 1 then
      position = call('ZCARD', queue) - 1
    else
      arrival = call('ZSCORE', queue, member)
    end
  elseif not call('ZSCORE', queue, member) then -- first, as ZADD needs memory
    call('ZADD', queue, arrival, member)
    arrival = '-' .. arrival
  end
  position = position or call('ZRANK', queue, member)
  -- A waiter asks again within its own lease after the lease of the owner. The place outlives both.
  local keep = math.max(remaining, ttl) + ttl + 60000
  if call('PTTL', queue) < keep then
    call('PEXPIRE', queue, keep)
  end
  return {2, has, remaining, tonumber(arrival), position}
end)
