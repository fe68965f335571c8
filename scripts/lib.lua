-- Functions for all scripts: this file stands in front of each verb, or in place of its line "-- lib".
--
-- A lock is three keys in one slot, each with a TTL:
--   base        hash    <hold> -> count, one field; the TTL of the key is the lease
--   base:queue  zset    <hold>|<lease ms> -> arrival in microseconds
--   base:token  string  the last fencing token
-- and a channel for each client that waits: base:<client>. A hold is <client>:<n>:<m>.
--
-- Scripts set state and never add to it, so two runs of a script do the work of one.
local call = redis.call

-- Calls unit(i) for each of count locks and returns a list of their replies. A unit that fails
-- among several replies "-" and its error. A unit that is alone is the whole reply, or error.
local function each(count, unit)
  if count == 1 then
    return unit(1)
  end
  local replies = {}
  for i = 1, count do
    local ok, reply = pcall(unit, i)
    replies[i] = ok and reply or '-' .. (type(reply) == 'table' and reply.err or reply)
  end
  return replies
end

-- Returns the hold that has the lock and its count, nil if nobody has the lock. A foreign hash is a
-- lock of its first field, or of the second one behind the mode of a read-write lock of Redisson.
local function owner(base)
  local fields = call('HGETALL', base)
  local at = fields[1] == 'mode' and fields[3] and 3 or 1
  return fields[at], fields[at + 1]
end

-- Makes hold the owner in place of old. A lease that cannot be set leaves no lock without an end.
local function enter(base, hold, ttl, old)
  call('HSET', base, hold, '1')
  if old then
    call('HDEL', base, old)
  end
  if redis.pcall('PEXPIRE', base, ttl) ~= 1 then
    call('HDEL', base, hold)
    call('PEXPIRE', base, ttl) -- raises the error in Redis's own words
  end
end

-- Sets the count of the owner. At maxmemory Redis refuses HSET, unless the script has written
-- before. HDEL of a field that never exists is such a write, and changes nothing.
local function set(base, hold, count)
  call('HDEL', base, '')
  call('HSET', base, hold, count)
end

-- Returns the command that reaches subscribers of a channel on this node, or nil. The reply of
-- PUBLISH cannot tell: its count leaves out subscribers at replicas and other nodes. Clients may
-- differ in whether they know sharded pub/sub. A server before Redis 7 does not.
local function reach(publish, channel)
  local function sharded()
    local n = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)
    return not n.err and n[2] > 0
  end
  if publish == 'SPUBLISH' and sharded() then
    return publish
  elseif call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    return 'PUBLISH'
  end
  return publish ~= 'SPUBLISH' and sharded() and 'SPUBLISH' or nil
end

-- Publishes, as the last step of a script: what was written stays, also if the server refuses.
-- Returns the refusal, else nil.
local function tell(command, channel, text)
  local answer = redis.pcall(command, channel, text)
  return type(answer) == 'table' and answer.err and command .. ': ' .. answer.err or nil
end

-- Raises the refusal of tell at the end of a script. The mark says that the script has run.
local function raise(untold)
  if untold then
    error('UNTOLD ' .. untold, 0)
  end
end

-- Returns the message of a grant: the hold, and behind "+" on a second line the holds of the same
-- client that stand first in the queue now, with the same lease, at most 63. The client may pass the
-- lease on to them in this order. Their places stay until they are served, so a client that does not
-- know of the second line loses nothing. One place is looked at first, as many queues go on with
-- another client. A user who may not call ZRANGE gets the first line.
local function message(queue, waiting, hold, client, ttl)
  local behind, last = {}, -1
  while waiting > 0 and #behind == last + 1 and last < 62 do
    local first = last + 1
    last = first == 0 and 0 or 62
    for _, place in ipairs(redis.pcall('ZRANGE', queue, first, last)) do
      local other, of, lease = string.match(place, '^((.+):%d+:%d+)|(%d+)$')
      if of ~= client or lease ~= ttl then
        break
      end
      behind[#behind + 1] = other
    end
  end
  return #behind > 0 and hold .. '\n+' .. table.concat(behind, ' ') or hold
end

-- Gives the lock to the first waiter with a subscriber, and returns that hold. A waiter without a
-- subscriber is skipped: its client is dead, or asks again with its old arrival once it listens.
-- One call skips at most 100 waiters, as Redis serves nobody else meanwhile; the second result says
-- whether more are left. old is the hold that leaves, nil if the lock is free. caller is the hold
-- of acquire, which learns of its grant by the reply. The third result is a refusal of tell: then the
-- hold finds out when the lease of the last owner should be over.
--
-- While a slot migrates, Redis refuses keys that do not exist any more. So base keeps a field until
-- no hold is left, and nothing touches the queue after its last member.
local function grant(base, queue, publish, waiting, old, caller)
  for n = 1, math.min(waiting, 100) do
    local member = call('ZPOPMIN', queue)[1] -- needs no memory, see set
    local hold, client, ttl = string.match(member, '^((.+):%d+:%d+)|(%d+)$')
    local command = hold and hold ~= old and hold ~= caller and reach(publish, base .. ':' .. client)
    if command or hold and hold == caller then
      enter(base, hold, ttl, old)
      return hold, false, command and tell(command, base .. ':' .. client, message(queue, waiting - n, hold, client, ttl))
    end
  end
  return nil, waiting > 100
end

-- Frees the lock of a hold, or grants the lock to the first waiter. Returns 1 freed, 0 the hold is
-- gone, 3 call again: only dead waiters so far, and the hold still has the lock. waiting is the
-- length of the queue, if it is known.
local function release(base, queue, publish, hold, waiting)
  waiting = waiting or call('ZCARD', queue)
  if waiting == 0 or call('HEXISTS', base, hold) == 0 then
    return call('HDEL', base, hold) -- a write, as a replica that is behind must say READONLY
  end
  local heir, more, untold = grant(base, queue, publish, waiting, hold)
  raise(untold)
  return heir and 1 or more and 3 or call('HDEL', base, hold)
end
