-- Takes and releases many locks in one call: what acquire and release do with the fewest arguments, for a first entry that
-- does not wait, and for the last exit of a hold.
--
-- KEYS     base of each lock, those to take first; then queue of each; then token of each
-- ARGV     how many are to be taken; the hold of each lock; lease ms for each to take; if there is only one, it is that of
--          all
-- Returns  for each lock what acquire or release would; nothing where that is an error. Then ask by itself: it may have run
--          in part, and the others have run. (go-redis cannot read every error that stands in a list.)
-- Idempotent because acquire and release are.

local call = redis.call
local take, locks = tonumber(ARGV[1]), #KEYS / 3
local queues, tokens, leases = locks, 2 * locks, locks + 1 -- what stands before them
local replies = {}

-- Notes what the function says to each lock from first to last. Each is nobody else's trouble.
local function each(what, first, last)
  local i = first - 1
  local function rest()
    while i < last do
      i = i + 1
      replies[i] = what(i)
    end
  end
  while i < last do
    if not pcall(rest) then
      replies[i] = false
    end
  end
end

-- Who leaves goes first: somebody else in this call may want what is free then. The hold's field is taken away, and with it
-- the key if nothing else is there. 0 if there was no such hold, and an error if this is a replica that does not know yet.
local function leave(i)
  return call('HDEL', KEYS[i], ARGV[1 + i])
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

each(leave, take + 1, locks)

-- The common case first, before the rest is even defined: nobody holds any of these locks now, and nobody waits for one. It is
-- asked once for all, so no lock may be taken twice here.
local seen, twice = {}, false
for i = 1, take do
  twice = twice or seen[KEYS[i]]
  seen[KEYS[i]] = true
end
if not twice and call('EXISTS', unpack(KEYS, 1, tokens)) == 0 then
  each(enter_free, 1, take)
  return replies
end

--- include enter
--- include owner
--- include grant
--- include ask

-- Frees a lock that was left, or grants it to the first who waits.
local function settle(i)
  local base, queue, token_key, hold = KEYS[i], KEYS[queues + i], KEYS[tokens + i], ARGV[1 + i]
  if replies[i] ~= 1 or call('EXISTS', base, queue) == 0 then
    return replies[i]
  end
  local prepared = call('HGET', base, NEXT)
  if prepared then
--- include handover
    if given then
      return 1
    end
  end
  local last = last_token(token_key)
  grant(base, queue, token_key, last, last, 'PUBLISH', nil, hold, nil)
  return 1
end

local function acquire(i)
  local base, queue = KEYS[i], KEYS[queues + i]
  if call('EXISTS', base, queue) == 0 then
    return enter_free(i)
  end
  return ask(base, queue, KEYS[tokens + i], ARGV[1 + i], ARGV[leases + i] or ARGV[leases + 1], 1, 1, 'PUBLISH', '', 0, nil)
end

each(settle, take + 1, locks)
each(acquire, 1, take)
return replies
