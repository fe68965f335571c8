-- Included, after enter, by the scripts that free a lock, find it free, or queue for it.

-- The command that reaches those who hear a channel on this very node, nil if nobody does. It is asked before publishing,
-- and not learnt from what PUBLISH returns, because a message goes on to subscribers at replicas and other nodes, which
-- PUBLISH does not count: a waiter there would believe a grant that was taken back for want of a listener.
local function reach(publish, channel)
  if publish == 'SPUBLISH' then
    local sharded = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)
    if not sharded.err and sharded[2] > 0 then
      return publish
    end -- an error is a server before Redis 7: its subscribers have found that out, and listen to PUBLISH
  end
  return redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 and 'PUBLISH' or nil
end

-- Gives the lock to the first waiter that is still there, and returns the new owner and its token; nil when nobody is,
-- and then the lock is free. A waiter that nothing reaches is gone, or between two connections and will ask again with its
-- first arrival: the next one is taken. If the first is the caller, the reply of this very script tells it. old is the hold
-- that gives the lock away, nil if it is free.
--
-- While a slot migrates, Redis refuses a script every key that does not exist any more. So base keeps a hold until nobody
-- is left, and the queue is left alone once its last member is out.
local function grant(base, queue, token_key, publish, caller, old)
  for _ = 1, redis.call('ZCARD', queue) do
    local head = redis.call('ZPOPMIN', queue)[1] -- needs no memory; after it Redis lets the script write all the same
    local hold, client, ttl = string.match(head, '^(.+)|(.+)|(%d+)$')
    local channel = base .. ':' .. (client or '')
    local command = hold and hold ~= caller and reach(publish, channel)
    if command or hold and hold == caller then
      local token = next_token(token_key)
      redis.call('HSET', base, hold, 1)
      if old then
        redis.call('HDEL', base, old, STEP)
      end
      redis.call('PEXPIRE', base, ttl)
      if command then
        redis.call(command, channel, string.format('%s|%.0f', hold, token))
      end
      return hold, token
    end
  end
  if old then
    redis.call('DEL', base)
  end
end
