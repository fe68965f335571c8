-- Takes a lock for a hold, or joins the queue.
--
-- ARGV     ... arrival: '' do not queue, '0' queue for the first time, else the arrival of an
--          earlier reply, for the same place
-- Returns  {status, owner, remaining ms of its lease, arrival, position}, or the status alone:
--          1  the hold has the lock, with a new lease; {1, hold, remaining}: had the lock before
--          0  busy, and not queued: unwanted, or nothing hears the channel of the client here
--          2  busy, and queued; an arrival below 0 says that the place was lost, and is back
--          3  only dead waiters or leases so far: call again
--          4  {4, type}: the name is another kind of lock, or no lock
--          5  {5, rival, remaining}: another upgrade, the rival, waits for the hold around this claim
-- Idempotent because a hold that has the lock keeps its lease, and a waiter keeps its place.
--
-- One lock that is free and has no queue needs no function of lib, which Redis makes anew for each
-- call. This is admit and draw once more, for keys that do not exist and a token below the clock.
local exist = #KEYS == 4 and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3])
if exist == 0 then
  local ttl, mode, time = ARGV[3], ARGV[4], redis.call('TIME')
  local member, micros = ARGV[2] .. '|' .. mode, time[1] * 1000000 + time[2]
  local token = mode == 'w' and redis.call('GET', KEYS[4]) or '0'
  if string.match(token, '^%d+$') and tonumber(token) < micros then
    if mode == 'w' then
      redis.call('SET', KEYS[4], string.format('%.0f', micros), 'PX', 24 * 60 * 60 * 1000)
    end
    redis.call('ZADD', KEYS[1], math.floor(micros / 1000) + ttl, member)
    redis.call('PEXPIRE', KEYS[1], ttl)
    if mode ~= 'r' then
      redis.call('ZADD', KEYS[2], mode == 'w' and '1' or mode, member)
      redis.call('PEXPIRE', KEYS[2], ttl)
    end
    return 1
  end
end

-- lib
return each(#KEYS / 4, function(i)
  local publish, lock, a, arrival = ARGV[1], unit(i)
  if (exist or call('EXISTS', lock.base, lock.limits, lock.queue)) == 0 then
    admit(lock, {a})
    return 1
  end

  local found = foreign(lock, a)
  if found then
    return {4, found}
  elseif expire(lock) then
    return 3
  end
  local ending, now = call('ZSCORE', lock.base, a.member), clock(lock)
  if ending then
    call('PEXPIRE', lock.base, math.max(call('PTTL', lock.base), ending - now)) -- a write, for WAIT
    return {1, a.hold, ending - now}
  end
  local more, served = serve(lock, publish, a.hold)
  if more then
    return 3
  elseif served then
    return 1
  elseif (a.with or lock.waiting == 0) and fits(lock, a) then
    admit(lock, {a})
    return 1
  end

  local holds = call('ZRANGE', lock.base, 0, 1, 'WITHSCORES')
  local at = holds[1] == a.with and 3 or 1
  local owner, remaining = string.match(holds[at] or '', '^[^|]*'), (holds[at + 1] or now) - now
  if arrival == '' or not reach(publish, lock.base .. ':' .. string.match(a.hold, '^(.+):%d+:%d+$')) then
    return {0, owner, remaining}
  end
  local head = a.with and call('ZRANGE', lock.queue, 0, 0)[1]
  local rival, with = string.match(head or '', '^([^|]+)|%d+|%w+|(.+)$')
  if rival and with ~= string.match(a.with, '^[^|]+') then
    return {5, rival, remaining}
  end
  local place, position = placeOf(a), nil
  if arrival == '0' then
    arrival = a.with and 1 or lock.micros
    if call('ZADD', lock.queue, 'NX', arrival, place) == 0 then
      arrival = call('ZSCORE', lock.queue, place)
    elseif not a.with then
      position = lock.waiting
    end
  else
    local known = call('ZSCORE', lock.queue, place) -- first, as ZADD needs memory
    if not known then
      call('ZADD', lock.queue, arrival, place)
    end
    arrival = known or '-' .. arrival
  end
  position = position or call('ZRANK', lock.queue, place)
  -- A waiter asks again within its own lease after the lease of the owner. The place outlives both.
  local keep = math.ceil(math.max(remaining, a.ttl)) + a.ttl + 60000
  if call('PTTL', lock.queue) < keep then
    call('PEXPIRE', lock.queue, keep)
  end
  return {2, owner, remaining, tonumber(arrival), position}
end)
