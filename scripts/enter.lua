-- Included by the scripts that can make a hold the owner of a lock.
--
-- A lock is three keys in one slot:
--   base          hash    <hold> -> count and, once the hold has been entered again, "step" -> its last step
--   base:queue    zset    "<hold>|<client id>|<lease ms>" -> arrival in microseconds
--   base:token    string  the last fencing token
-- and one channel for each client that waits: base:<client id>.
--
-- Lua numbers are doubles. Microseconds since 1970 stay below 2^53 until the year 2255, so they are exact here.

local STEP = 'step'

local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- A token is never below the server's clock, so losing the key (it expired, or Redis restarted empty) cannot turn it
-- back; and always above the last one, so the clock cannot turn it back either: the key of a token that is ahead of the
-- clock lives until the clock has passed it. Written first: if its key has another type, or memory has run out, the
-- script ends here and nothing has changed.
local function next_token(token_key)
  local now, day = now_us(), 24 * 60 * 60 * 1000
  local last = tonumber(redis.call('SET', token_key, now, 'PX', day, 'GET'))
  if not last or last < now then
    return now
  end
  redis.call('SET', token_key, last + 1, 'PX', day + math.floor((last - now) / 1000))
  return last + 1
end

-- Makes hold the owner of a free lock and returns its token.
local function enter(base, token_key, hold, ttl)
  local token = next_token(token_key)
  redis.call('HSET', base, hold, 1)
  redis.call('PEXPIRE', base, ttl)
  return token
end
