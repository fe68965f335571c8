-- Included, after enter, by the scripts that free a lock, find it free, or queue for it.

-- The command that reaches those who hear a channel on this very node, nil if nobody does. It is asked before publishing,
-- and not learnt from what PUBLISH returns, because a message goes on to subscribers at replicas and other nodes, which
-- PUBLISH does not count: a waiter there would believe a grant that was taken back for want of a listener.
--
-- publish is asked first. The other one is for clients that have learnt at different times whether there is sharded pub/sub; an
-- error is a server before Redis 7, which has none.
local function reach(publish, channel)
  local function sharded()
    local n = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)
    return not n.err and n[2] > 0
  end
  if publish == 'SPUBLISH' and sharded() then
    return publish
  end
  if call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    return 'PUBLISH'
  end
  return publish ~= 'SPUBLISH' and sharded() and 'SPUBLISH' or nil
end

-- Gives the lock to the first waiter that is still there, and returns the new owner and its token; nil when nobody is,
-- and then the lock is free. A waiter that nothing reaches is gone, or between two connections and will ask again with its
-- first arrival: the next one is taken. If the first is the caller, the reply of this very script tells it. last and used
-- are for next_token. old is the hold that gives the lock away, nil if it is free. waiting is how many wait, nil if that is
-- not known.
--
-- While a slot migrates, Redis refuses a script every key that does not exist any more. So base keeps a hold until nobody
-- is left, and the queue is left alone once its last member is out.
--
-- On a server that has been idle each kind of command costs several microseconds here, and a waiter waits for their sum: so
-- there are as few as can be.
local function grant(base, queue, token_key, last, used, publish, caller, old, waiting)
  for _ = 1, waiting or call('ZCARD', queue) do
    local head = call('ZPOPMIN', queue)[1] -- needs no memory; after it Redis lets the script write all the same
    local hold, client, ttl, aside = string.match(head, '^([^|]+)|([^|]+)|(%d+)|?(%d*)$')
    local channel = base .. ':' .. (client or '')
    local waits = hold and hold ~= old -- the owner itself, if its grant was prepared
    local command = waits and hold ~= caller and reach(publish, channel)
    if command or waits and hold == caller then
      local token, digits = next_token(token_key, last, used, aside ~= '' and tonumber(aside) or 0)
      call('HSET', base, hold, '1')
      if old then
        call('HDEL', base, old, STEP, AS, NEXT, TOKEN)
      end
--- include lease
      if command then
        call(command, channel, hold .. '|' .. digits)
      end
      return hold, token
    end
  end
  if old then
    call('DEL', base)
  end
end

-- Prepares the hand-over from the owner to the first waiter, see enter. heir is for whom it is prepared already, nil if for
-- nobody, and before the last token before that, nil if none was noted. last is for next_token.
--
-- Not prepared is what a release needs more for: sharded pub/sub, and tokens to set aside. A token ahead of the clock is not
-- drawn before it is given, as it might never be; and none while the owner's is not known. And nothing is noted in a hash
-- that is not of our making.
local function prepare(base, queue, token_key, held_by, heir, before, last, publish)
  local head = call('ZRANGE', queue, 0, 0)[1]
  if not head or heir == head then
    return
  end
  if publish == 'PUBLISH' and string.find(head, '^[^|]+|[^|]+|%d+$') and string.find(held_by, ':%d+:%d+$') and last > 0
    and now_us() > last then
    local _, digits = next_token(token_key, last, last, 0)
    call('HSET', base, NEXT, head .. '|' .. digits, TOKEN, string.format('%.0f', before or last))
  elseif heir then
    call('HDEL', base, NEXT)
  end
end
