-- Takes and releases many locks in one call: what acquire and release do with the fewest arguments, for a first entry that
-- does not wait, and for the last exit of a hold.
--
-- KEYS     base and then queue of each lock to take; queue of each to release; token of each to take; base and then
--          token of each to release
-- ARGV     how many are to be taken; the hold of each of these; that of each to release; lease ms for each to take; if
--          there is only one, it is that of all
-- Returns  for each to take, and then for each to release, what acquire or release would; nothing where that is an error.
--          Then ask by itself: it may have run in part, and the others have run. (go-redis cannot read every error that
--          stands in a list.)
-- Idempotent because acquire and release are.

local call = redis.call
local take = tonumber(ARGV[1])
local release = #KEYS / 3 - take
local queues, tokens, bases = 2 * take, 2 * take + release, 3 * take + release -- what stands before them in KEYS
local leases = take + release + 1 -- and in ARGV
local replies = {}

-- Each lock is nobody else's trouble.
local function part(what, i, how)
  local ok, reply = pcall(what, i, how)
  return ok and reply
end

-- False where there is none, and where the key is of another type.
local lasts = take > 0 and call('MGET', unpack(KEYS, tokens + 1, tokens + take))
--- include clock

-- Nobody holds it and nobody waits.
local function enter_free(i)
  local base, token_key, last = KEYS[i], KEYS[tokens + i], tonumber(lasts[i] or 0)
  local used = last
--- include mint
  call('HSET', base, ARGV[1 + i], '1')
  call('PEXPIRE', base, ARGV[leases + i] or ARGV[leases + 1])
  return token
end

-- hand_on is for where others may wait: it grants the lock to one of them, or returns nil.
local function leave(i, hand_on)
  local base, hold = KEYS[bases + i], ARGV[1 + take + i]
  local mine, prepared = unpack(call('HMGET', base, hold, 'next'))
  if not mine then
    return call('HDEL', base, hold) -- 0, or an error if this is a replica that does not know yet
  end
  if prepared then
--- include handover
    if given then
      return 1
    end
  end
  return hand_on and hand_on(i) or call('DEL', base)
end

-- The common case first, before the rest is even defined: nobody holds what is to be taken, and nobody waits for any of them.
-- It is asked once for all, so no lock may be taken twice here; one that is to be released too is held.
local seen, twice = {}, false
for i = 1, take do
  twice = twice or seen[KEYS[i]]
  seen[KEYS[i]] = true
end
if not twice and call('EXISTS', unpack(KEYS, 1, tokens)) == 0 then
  for i = 1, take do
    replies[i] = part(enter_free, i)
  end
  for i = 1, release do
    replies[take + i] = part(leave, i)
  end
  return replies
end

--- include enter
--- include owner
--- include grant
--- include ask

local function hand_on(i)
  local base, queue, token_key, hold = KEYS[bases + i], KEYS[queues + i], KEYS[bases + release + i], ARGV[1 + take + i]
  local waiting = call('ZCARD', queue)
  if waiting == 0 then
    return nil
  end
  local last = last_token(token_key)
  grant(base, queue, token_key, last, last, 'PUBLISH', nil, hold, waiting)
  return 1
end

local function acquire(i)
  local base, queue = KEYS[i], KEYS[take + i]
  if call('EXISTS', base, queue) == 0 then
    return enter_free(i)
  end
  return ask(base, queue, KEYS[tokens + i], ARGV[1 + i], ARGV[leases + i] or ARGV[leases + 1], 1, 1, 'PUBLISH', '', 0, nil)
end

-- Who leaves goes first: somebody else in this call may want what is free then.
for i = 1, release do
  replies[take + i] = part(leave, i, hand_on)
end
for i = 1, take do
  replies[i] = part(acquire, i)
end
return replies
