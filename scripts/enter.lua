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
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

local function last_token(token_key)
--- include last
  return last
end

-- The token after last, which is the last one, and how it is written.
local function next_token(token_key, last)
--- include token
  -- Cheaper than to format it, if it is the clock.
  return token, token == now and time[1] .. string.sub('00000' .. time[2], -6) or string.format('%.0f', token)
end

-- Makes hold the owner of a free lock and returns its token.
local function enter(base, token_key, last, hold, ttl)
  local token = next_token(token_key, last)
  call('HSET', base, hold, '1')
  call('PEXPIRE', base, ttl)
  return token
end
