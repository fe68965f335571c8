-- Takes and releases many locks in one call: what acquire and release do with the fewest arguments, for a first entry that
-- does not wait, and for the last exit of a hold.
--
-- KEYS     base of each lock, those to release first; then queue of each; then token of each
-- ARGV     how many are to be released; the hold of each lock; lease ms for each to take; if there is only one, it is that
--          of all
-- Returns  for each lock what acquire or release would; nothing where that is an error. Then ask by itself: it may have run
--          in part, and the others have run. (go-redis cannot read every error that stands in a list.)
-- Idempotent because acquire and release are.

local call = redis.call
local release, locks = tonumber(ARGV[1]), #KEYS / 3
local queues, tokens, leases = locks, 2 * locks, 1 + locks - release -- what stands before that of the first lock
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

-- False where there is none, and where the key is of another type.
local lasts = release < locks and call('MGET', unpack(KEYS, tokens + release + 1, tokens + locks))
--- include clock

-- Nobody holds it and nobody waits.
local function enter_free(i)
  local base, token_key, last = KEYS[i], KEYS[tokens + i], tonumber(lasts[i - release] or 0)
  local used = last
--- include mint
  call('HSET', base, ARGV[1 + i], '1')
  call('PEXPIRE', base, ARGV[leases + i] or ARGV[locks + 2])
  return token
end

local function hand_over(base, hold, prepared)
--- include handover
  return given
end

-- Takes the hold's field away, and with it the key if nothing else is there. 0 if there was no such hold, and an error if
-- this is a replica that does not know yet.
local function leave_lonely(i)
  return call('HDEL', KEYS[i], ARGV[1 + i])
end

-- For where something else was there: what is noted beside an owner.
local function clear(i)
  local base, prepared = KEYS[i], replies[i] == 1 and call('HGET', KEYS[i], 'next')
  if replies[i] == 1 and not (prepared and hand_over(base, ARGV[1 + i], prepared)) then
    call('DEL', base)
  end
  return replies[i]
end

-- The common case first, before the rest is even defined: nobody holds what is to be taken, and nobody waits for any of them.
-- It is asked once for all, so no lock may be taken twice here; one that is to be released too is held.
local seen, twice = {}, false
for i = release + 1, locks do
  twice = twice or seen[KEYS[i]]
  seen[KEYS[i]] = true
end
if not twice and call('EXISTS', unpack(KEYS, release + 1, tokens)) == 0 then
  each(enter_free, release + 1, locks) -- first: once something was released, Redis lets a script write without memory
  each(leave_lonely, 1, release)
  if release > 0 and call('EXISTS', unpack(KEYS, 1, release)) > 0 then
    each(clear, 1, release)
  end
  return replies
end

--- include enter
--- include owner
--- include grant
--- include ask

local function leave(i)
  local base, queue, token_key, hold = KEYS[i], KEYS[queues + i], KEYS[tokens + i], ARGV[1 + i]
  local mine, prepared = unpack(call('HMGET', base, hold, NEXT))
  if not mine then
    return leave_lonely(i)
  end
  if prepared and hand_over(base, hold, prepared) then
    return 1
  end
  local waiting = call('ZCARD', queue)
  if waiting > 0 then
    local last = last_token(token_key)
    grant(base, queue, token_key, last, last, 'PUBLISH', nil, hold, waiting)
  else
    call('DEL', base)
  end
  return 1
end

local function acquire(i)
  local base, queue = KEYS[i], KEYS[queues + i]
  if call('EXISTS', base, queue) == 0 then
    return enter_free(i)
  end
  return ask(base, queue, KEYS[tokens + i], ARGV[1 + i], ARGV[leases + i] or ARGV[locks + 2], 1, 1, 'PUBLISH', '', 0, nil)
end

each(leave, 1, release) -- first: somebody else in this call may want what is free then
each(acquire, release + 1, locks)
return replies
