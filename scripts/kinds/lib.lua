-- Functions for read-write locks and semaphores: this file stands behind lib.lua.
--
-- A lock is four keys in one slot, each with a TTL; KIND is rw or permits:
--   base             zset    <hold>|<mode> -> end of its lease, in ms of the server's clock
--   base:KIND        zset    the members of base with a limit -> limit
--   base:KIND:queue  zset    <hold>|<lease ms>|<mode>|<with> -> arrival in microseconds; 1: inside
--                            the hold <with> of this lock, and so before all others
--   base:token       string  the last fencing token
-- and a channel for each client that waits, as for a mutex. A message names all members of the
-- client that are granted at once, one a line. A mode is r (reader, no limit), w (writer, limit 1), or the
-- limit of a permit.
--
-- The rule: a hold may come in if, with it, there are no more holds than its own limit and than the
-- limit of each hold that is in. The hold around a claim does not count.
--
-- KEYS     base, base:KIND, base:KIND:queue, base:token
-- ARGV     publish command; hold, lease ms, mode, with ('': none), and an argument of the verb

-- Makes a claim of its parts.
local function claim(hold, ttl, mode, with)
  local a = {hold = hold, ttl = tonumber(ttl), mode = mode, member = hold .. '|' .. mode}
  if with ~= '' then
    a.with = with .. (mode == 'w' and '|r' or '|w') -- the member of base
  end
  return a
end

-- Returns the place of a claim in the queue.
local function placeOf(a)
  return string.format('%s|%.0f|%s|%s', a.hold, a.ttl, a.mode, string.match(a.with or '', '^[^|]*'))
end

-- Returns the limit of a mode.
local function limit(mode)
  return tonumber(mode) or mode == 'w' and 1 or math.huge
end

-- Returns the lock of unit i, the claim of its hold, and the argument of the verb.
local function unit(i)
  local key, arg = 4 * (i - 1), 5 * (i - 1) + 1
  local lock = {base = KEYS[key + 1], limits = KEYS[key + 2], queue = KEYS[key + 3], token = KEYS[key + 4], unit = i}
  return lock, claim(ARGV[arg + 1], ARGV[arg + 2], ARGV[arg + 3], ARGV[arg + 4]), ARGV[arg + 5]
end

-- Returns the time of the server in ms, and in microseconds. Units of one call keep their order.
local function clock(lock)
  if not lock.now then
    local time = call('TIME')
    lock.micros = time[1] * 1000000 + time[2] + lock.unit
    lock.now = math.floor(lock.micros / 1000)
  end
  return lock.now, lock.micros
end

-- Returns the last token, 0 if none is known.
local function last(lock)
  local token = call('GET', lock.token) or '0'
  if not string.match(token, '^%d+$') or tonumber(token) > 9e15 then
    error(lock.token .. ' holds no token, or one that is too large')
  end
  return tonumber(token)
end

-- Draws a token, as token.lua of the mutex does.
local function draw(lock)
  local _, now = clock(lock)
  local token = math.max(now, last(lock) + 1)
  local keep = 24 * 60 * 60 * 1000 + math.ceil((token - now) / 1000)
  call('SET', lock.token, string.format('%.0f', token), 'PX', string.format('%.0f', keep))
  return token
end

-- Counts as the first write of the script, and changes nothing: after it Redis refuses no ZADD or
-- SET at maxmemory.
local function write(key)
  call('ZREM', key, '')
end

-- Makes a key outlive a lease.
local function outlive(key, ttl)
  if call('PTTL', key) < ttl then
    call('PEXPIRE', key, ttl)
  end
end

-- Lets holds in. A writer draws a token: readers with one token saw no writer in between.
local function admit(lock, claims)
  local ends, limited, longest = {}, {}, 0
  for _, a in ipairs(claims) do
    ends[#ends + 1] = clock(lock) + a.ttl
    ends[#ends + 1] = a.member
    longest = math.max(longest, a.ttl)
    if a.mode == 'w' then
      draw(lock)
    end
    if a.mode ~= 'r' then
      limited[#limited + 1] = limit(a.mode)
      limited[#limited + 1] = a.member
    end
  end
  call('ZADD', lock.base, unpack(ends))
  outlive(lock.base, longest)
  if #limited > 0 then
    call('ZADD', lock.limits, unpack(limited))
    outlive(lock.limits, longest)
  end
end

-- Counts the holds that are in, and returns their smallest limit too. Two holds may be left out.
local function crowd(lock, out, other)
  local count, least = call('ZCARD', lock.base), math.huge
  local lowest = call('ZRANGE', lock.limits, 0, 2, 'WITHSCORES')
  for at = #lowest - 1, 1, -2 do
    if lowest[at] ~= out and lowest[at] ~= other then
      least = tonumber(lowest[at + 1])
    end
  end
  if out and call('ZSCORE', lock.base, out) then
    count = count - 1
  end
  if other and other ~= out and call('ZSCORE', lock.base, other) then
    count = count - 1
  end
  return count, least
end

-- Says whether the rule lets a claim in. A hold that leaves in this call does not count.
local function fits(lock, a)
  local count, least = crowd(lock, lock.leaving, a.with)
  return count < math.min(least, limit(a.mode))
end

-- Ends the leases that are over, at most 1000 in a call: true asks for another call.
local function expire(lock)
  local over = call('ZRANGEBYSCORE', lock.base, '-inf', clock(lock), 'LIMIT', 0, 1000)
  if #over > 0 then
    call('ZREM', lock.limits, unpack(over))
    call('ZREM', lock.base, unpack(over))
  end
  return #over == 1000
end

-- Tells each client once which of its holds were let in. lock.untold is a refusal of tell.
local function tellAll(lock, commands, granted)
  local clients, holds = {}, {}
  for _, a in ipairs(granted) do
    if not holds[a.client] then
      holds[a.client] = {}
      clients[#clients + 1] = a.client
    end
    table.insert(holds[a.client], a.member)
  end
  for _, client in ipairs(clients) do
    lock.untold = tell(commands[client], lock.base .. ':' .. client, table.concat(holds[client], '\n')) or lock.untold
  end
end

-- Lets the first waiters in for as long as the rule admits them. Where one reader is let in so are
-- all readers behind it, and nobody else. A waiter whose client does not listen is dropped, also
-- where the rule holds it up: the client is dead, or asks again with the old arrival once it
-- listens. One call drops about 100 at most: the first result asks for another call. caller is the
-- hold of acquire, which learns of its grant by the second result. lock.waiting is the rest of the
-- queue.
--
-- While a slot migrates, Redis refuses keys that do not exist any more. So a hold leaves after its
-- heirs are in, and nothing touches the queue after its last member.
local function serve(lock, publish, caller)
  local commands, granted, served = {}, {}, false
  local dead, reading, blocked = 0, false, false
  lock.waiting = lock.waiting or call('ZCARD', lock.queue)
  while lock.waiting > 0 and dead < 100 and not blocked do
    local admitted, places = {}, {}
    for _, place in ipairs(call('ZRANGE', lock.queue, 0, reading and 99 or 0)) do
      local hold, ttl, mode, with = string.match(place, '^([^|]+)|(%d+)|(%w+)|(.*)$')
      local client = string.match(hold or '', '^(.+):%d+:%d+$')
      if client and commands[client] == nil then
        commands[client] = reach(publish, lock.base .. ':' .. client) or false
      end
      if client and (commands[client] or hold == caller) then
        local a = claim(hold, ttl, mode, with)
        local reader = mode == 'r' and not a.with
        blocked = reading and not reader or not reading and not fits(lock, a)
        if blocked then
          break
        end
        reading, a.client = reader, client
        table.insert(admitted, a)
        if hold == caller then
          served = true
        else
          table.insert(granted, a)
        end
      else
        dead = dead + 1
      end
      table.insert(places, place)
    end
    if #admitted > 0 then
      write(lock.queue)
      admit(lock, admitted)
    end
    if #places > 0 then
      call('ZREM', lock.queue, unpack(places))
    end
    lock.waiting = lock.waiting - #places
  end
  tellAll(lock, commands, granted)
  return lock.waiting > 0 and not blocked, served
end

-- Returns the mode of a member of base, nil of one that no script has written.
local function modeOf(member)
  return string.match(member, '^[^|]+:%d+:%d+|(%w+)$')
end

-- Returns the type of base. A read-write lock of Redisson is a hash with a mode.
local function typeOf(lock)
  local found = call('TYPE', lock.base).ok
  return found == 'hash' and call('HEXISTS', lock.base, 'mode') == 1 and 'Redisson' or found
end

-- Returns what a base is that is no lock of the kind of a claim, else nil. Where all leases are over
-- the base is removed.
local function foreign(lock, a)
  local found = typeOf(lock)
  if found == 'zset' then
    local last = call('ZRANGE', lock.base, -1, -1, 'WITHSCORES')
    local mode = modeOf(last[1])
    if not mode then
      return 'sorted set'
    elseif tonumber(last[2]) > clock(lock) then
      return (tonumber(a.mode) ~= nil) ~= (tonumber(mode) ~= nil) and found or nil
    end
  elseif found ~= 'none' then
    return found
  end
  call('DEL', lock.base, lock.limits)
end

-- Takes a hold out, and serves the queue. Returns 1 done, 0 the hold is gone, 3 call again: the
-- hold is still in.
local function leave(lock, publish, a)
  lock.waiting = lock.waiting or call('ZCARD', lock.queue)
  if lock.waiting > 0 and not foreign(lock, a) then
    lock.leaving = call('ZSCORE', lock.base, a.member) and a.member
    if expire(lock) or serve(lock, publish) then
      return 3
    elseif not lock.leaving then -- perhaps a waiter that was let in just now
      return call('ZREM', lock.base, '') -- 0, or READONLY
    end
  end
  if a.mode ~= 'r' then
    call('ZREM', lock.limits, a.member)
  end
  local left = call('ZREM', lock.base, a.member)
  raise(lock.untold)
  return left
end
