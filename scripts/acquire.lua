-- Takes the lock for a hold, enters it again, asks whether a grant has come, or joins the queue.
--
-- KEYS     base, queue, token
-- ARGV     hold, lease ms (0: leave it alone); target count (1), step (1), publish command (PUBLISH); from a hold that
--          would wait: client id (''), first arrival in microseconds (0: not in the queue yet); how many tokens to set aside
--          beyond its own (0). What is left out at the end has the value in brackets: in the common case each argument
--          would cost a tenth of what the script does.
-- Returns  token                                        the hold owns the lock, with the target count
--          0                                            the hold had entered before and is not the owner any more
--          {remaining ms, owner}                        another hold owns it; if it was to wait: nobody hears the
--                                                       client's channel here, so it would wait in vain
--          {remaining ms, owner, arrival, position, token}
--                                                       and this one is queued, with position waiters before it; a grant
--                                                       with that token or a lower one is from before this answer
-- Idempotent because the count is set, never added to, and a queued hold keeps its place.

local call = redis.call
local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]
local hold = ARGV[1]

-- The common case first, before the rest is even defined: nobody holds it and nobody waits.
if (ARGV[3] or '1') == '1' and call('EXISTS', base, queue) == 0 then
--- include last
  local used = last
--- include token
  if ARGV[8] then
    call('INCRBY', token_key, ARGV[8])
  end
  call('HSET', base, hold, '1')
  call('PEXPIRE', base, ARGV[2])
  return token
end

--- include enter
--- include owner
--- include grant

local ttl, target, step = tonumber(ARGV[2]), tonumber(ARGV[3] or 1), tonumber(ARGV[4] or 1)
local publish, client, aside = ARGV[5] or 'PUBLISH', ARGV[6] or '', tonumber(ARGV[8] or 0)

local last_given = last_token(token_key) -- must be one
local held_by, _, last, shown, prepared, before = owner(base)
if held_by == hold then
  update(base, hold, target, step, last, ttl)
  if not before and last_given == 0 then
    last_given = next_token(token_key, 0, 0, aside) + aside -- the key was lost
  end
  return (before or last_given) - aside
end
if target > 1 then
  return 0
end

if not held_by then
  -- Free while others queue: the last owner's lease ran out. They were first.
  local first, token = grant(base, queue, token_key, last_given, last_given, publish, hold, nil)
  if not first then
    return enter(base, token_key, last_given, hold, ttl, aside)
  end
  if first == hold then
    return token
  end
  held_by, shown, prepared, before, last_given = first, first, nil, nil, last_token(token_key)
end

local remaining = call('PTTL', base)
if client == '' or not reach(publish, base .. ':' .. client) then
  return {remaining, shown}
end

-- The owner may still be first in the queue, see enter.
local head = call('ZRANGE', queue, 0, 0)[1]
local changed = head and string.match(head, '^[^|]*') == held_by
if changed then
  call('ZPOPMIN', queue)
end

local member = hold .. '|' .. client .. '|' .. ARGV[2] .. (aside > 0 and '|' .. ARGV[8] or '')
local arrival = tonumber(call('ZSCORE', queue, member))
if not arrival then
  arrival = tonumber(ARGV[7])
  if arrival == 0 then
    -- Behind everybody, also when two arrive in one microsecond or the clock has been turned back.
    local tail = tonumber(call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2])
    arrival = math.max(now_us(), (tail or 0) + 1)
  end
  call('ZADD', queue, arrival, member)
  changed = true
end
-- A waiter asks again within its own lease after the owner's: its entry outlives that.
local keep = math.max(remaining, ttl) + ttl + 60000
if call('PTTL', queue) < keep then
  call('PEXPIRE', queue, keep)
end

local reply = {remaining, shown, arrival, call('ZRANK', queue, member) or 0, last_given}
local heir, digits = string.match(prepared or '', '^(.*)|(%d+)$')
if heir == member then
  reply[5] = tonumber(digits) - 1 -- the grant to come has the last one
elseif changed then
  prepare(base, queue, token_key, held_by, heir, before, last_given, publish)
end
return reply
