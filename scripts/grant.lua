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

-- Gives a free lock to the first waiter that is still there, from head (taken out of the queue already) on. Returns the
-- new owner and its token, or nil when nobody is left. A waiter that nothing reaches is gone, or between two connections
-- and will ask again with its first arrival: the next one is taken. If the first is the caller, the reply of this very
-- script tells it.
local function grant(head, base, queue, token_key, publish, caller)
  while head do
    local hold, client, ttl = string.match(head, '^(.+)|(.+)|(%d+)$')
    if hold and hold == caller then
      return hold, enter(base, token_key, hold, ttl)
    end
    local channel = base .. ':' .. (client or '')
    local command = hold and reach(publish, channel)
    if command then
      local token = enter(base, token_key, hold, ttl)
      redis.call(command, channel, string.format('%s|%.0f', hold, token))
      return hold, token
    end
    head = redis.call('ZPOPMIN', queue)[1]
  end
end

-- Frees a lock and grants it to the first waiter. The reads come first: a key of another type ends the script before
-- anything has changed.
local function free(base, queue, token_key, publish)
  redis.call('GET', token_key)
  local head = redis.call('ZPOPMIN', queue)[1]
  redis.call('DEL', base)
  grant(head, base, queue, token_key, publish)
end
