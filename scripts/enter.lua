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

-- The last token, 0 if there is none. A key that holds no number ends the script here, before anything has changed.
local function last_token(token_key)
  local last = redis.call('GET', token_key) or '0'
  if not string.match(last, '^%d+$') then
    redis.call('INCR', token_key) -- Redis's own words for what is wrong
  end
  return tonumber(last)
end

local function next_token(token_key)
--- include token
  return token
end

-- Makes hold the owner of a free lock and returns its token.
local function enter(base, token_key, hold, ttl)
  local token = next_token(token_key)
  redis.call('HSET', base, hold, 1)
  redis.call('PEXPIRE', base, ttl)
  return token
end
