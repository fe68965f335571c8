-- Takes and releases many locks in one call: what acquire and release do with the fewest arguments, for a first entry that
-- does not wait, and for the last exit of a hold.
--
-- KEYS     base of each lock, those to release first; then queue of each; then token of each
-- ARGV     how many are to be released; the hold of each lock; lease ms for each to take; if there is only one, it is that
--          of all
-- Returns  for each lock what acquire or release would; nothing where that is an error. Then ask by itself: it may have run
--          in part, and the others have run; -1 is an error of a release that has changed nothing. (go-redis cannot read every
--          error that stands in a list.)
-- Idempotent because acquire and release are.

local call = redis.call
local KEYS, ARGV = KEYS, ARGV
local release, locks = tonumber(ARGV[1]), #KEYS / 3
local queues, tokens, leases = locks, 2 * locks, 1 + locks - release -- what stands before that of the first lock
local replies = {}

local function run(what, first, last)
  for i = first, last do
    replies[i] = what(i)
  end
end

-- Notes what the function says to each lock from first to last. Each is nobody else's trouble. (How far it came is in the
-- replies: in miniredis's Lua a local that pcall's function shares is no longer shared after an error.)
local function each(what, first, last)
  while not pcall(run, what, first, last) do
    while replies[first] ~= nil do
      first = first + 1
    end
    replies[first] = false
    first = first + 1
  end
end

-- False where there is none, and where the key is of another type.
local lasts = release < locks and call('MGET', unpack(KEYS, tokens + release + 1, tokens + locks))
--- include clock

-- Nobody holds it and nobody waits.
local lease, over -- the last one, and when it is over
local function enter_free(i)
  local base, token_key, last = KEYS[i], KEYS[tokens + i], tonumber(lasts[i - release] or '0')
  if last > 9e15 then
    error() -- see last.lua, which says it to a hold that asks by itself
  end
  local used, ttl = last, ARGV[leases + i] or ARGV[locks + 2]
--- include mint
  call('HSET', base, ARGV[1 + i], '1')
  if ttl ~= lease then
    lease, over = ttl, string.format('%.0f', math.floor(now / 1000) + ttl)
  end
  if redis.pcall('PEXPIREAT', base, over) ~= 1 then -- it costs two thirds of PEXPIRE, but this user must not use it
--- include lease
  end
  return token
end

-- The hold leaves, and nobody waits. Its base is gone with the last field.
local function leave_free(i)
  local gone = redis.pcall('HDEL', KEYS[i], ARGV[1 + i]) -- 0, or an error if this is a replica that does not know yet
  return type(gone) == 'number' and gone or -1
end

-- Gives the lock to the one that its next hand-over is prepared for, and says whether that one hears it.
local function hand_over(base, hold, prepared)
--- include handover
  return given
end

-- The hold has left, and something is still noted beside it. (A queue whose key was lost has nobody, but its first waiter may
-- be prepared.)
local function leave_rest(i)
  local base, hold = KEYS[i], ARGV[1 + i]
  local prepared = call('HMGET', base, 'next')[1]
  if not (prepared and hand_over(base, hold, prepared)) and redis.pcall('DEL', base) ~= 1 then
    call('HDEL', base, 'step', 'as', 'next', 'token') -- this user must not use DEL
  end
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
  each(leave_free, 1, release)
  if release > 0 and call('EXISTS', unpack(KEYS, 1, release)) > 0 then
    for i = 1, release do
      if replies[i] == 1 then
        pcall(leave_rest, i) -- the hold has left, whatever becomes of this
      end
    end
  end
  return replies
end

--- include enter
--- include owner
--- include grant
--- include ask

-- Others may wait.
local function leave(i)
  local base, queue, token_key, hold = KEYS[i], KEYS[queues + i], KEYS[tokens + i], ARGV[1 + i]
  local mine, prepared = unpack(call('HMGET', base, hold, 'next'))
  if not mine then
    return leave_free(i)
  end
  if prepared and hand_over(base, hold, prepared) then
    return 1
  end
  local waiting = call('ZCARD', queue)
  if waiting == 0 then
    call('DEL', base)
    return 1
  end
  local last = last_token(token_key)
  grant(base, queue, token_key, last, last, 'PUBLISH', nil, hold, waiting)
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
