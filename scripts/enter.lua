-- Included by the scripts that can make a hold the owner of a lock.
--
-- A lock is three keys in one slot:
--   base          hash    <hold> -> count and, once the hold has been entered again, "step" -> its last step; once
--                         its process has passed it on, "as" -> "<number of the pass>|<the hold that has it now>"; and
--                         while others wait, "next" -> "<the first of them, as in the queue>|<its token>" (not always,
--                         see prepare) and "token" -> the last one that was given or set aside before
--   base:queue    zset    "<hold>|<client id>|<lease ms>", or with "|<tokens>" behind it -> arrival in microseconds. The
--                         first may be the owner itself, see below
--   base:token    string  the last fencing token that was given or set aside
-- and one channel for each client that waits: base:<client id>.
--
-- Tokens are set aside for the holds to which a process may pass the lock without asking: as many as it says in advance, all
-- larger than its own. What it has not used comes back with the release.
--
-- When a waiter joins the queue, its script prepares the next hand-over: "next" says all that the release needs to know, so the release
-- touches no other key. Nor does it take the new owner out of the queue: until another script changes that, its first may be the owner.
--
-- Lua numbers are doubles. Microseconds since 1970 stay below 2^53 until the year 2255, so they are exact here.

-- The fields beside the hold. handover, release and many write them out: what is there runs before this is included.
local STEP, AS, NEXT, TOKEN = 'step', 'as', 'next', 'token'

local function now_us()
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

local function last_token(token_key)
--- include last
  return last
end

-- A new token, and how it is written. last is what is in the key, used is the last token that some hold has had, and aside
-- is how many to set aside beyond the new one.
local function next_token(token_key, last, used, aside)
--- include token
  if aside > 0 then
    call('INCRBY', token_key, aside)
  end
  -- Cheaper than to format it, if it is the clock.
  return token, token == now and time[1] .. string.sub('00000' .. time[2], -6) or string.format('%.0f', token)
end

-- Makes hold the owner of a free lock and returns its token.
local function enter(base, token_key, last, hold, ttl, aside)
  local token = next_token(token_key, last, last, aside)
  call('HSET', base, hold, '1')
--- include lease
  return token
end
