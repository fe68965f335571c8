-- Included, after enter, by the scripts that free a lock or find it free.

-- Publishes a grant and returns how many received it.
local function announce(publish, channel, message)
  if publish == 'SPUBLISH' then
    local received = redis.pcall(publish, channel, message)
    if type(received) == 'number' then
      return received
    end -- a server before Redis 7: its subscribers have found that out, and listen to PUBLISH
  end
  return redis.call('PUBLISH', channel, message)
end

-- Gives a free lock to the first waiter that is still there, from head (taken out of the queue already) on. Returns the
-- new owner and its token, or nil when nobody is left. A grant that nobody received means that the waiter's client is
-- gone, or is between two connections and will ask again with its first arrival: the next one is taken. If the first is
-- the caller, the reply of this very script tells it.
local function grant(head, base, queue, token_key, publish, caller)
  while head do
    local hold, client, ttl = string.match(head, '^(.+)|(.+)|(%d+)$')
    if hold then
      local token = enter(base, token_key, hold, ttl)
      if hold == caller or announce(publish, base .. ':' .. client, string.format('%s|%.0f', hold, token)) > 0 then
        return hold, token
      end
      redis.call('DEL', base)
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
