-- Leaves one entry of a hold, or frees the lock and grants it to the first waiter.
--
-- KEYS     base, queue, token
-- ARGV     hold; target count (0), step and lease ms (0: leave it alone), which only matter if the target is not 0,
--          publish command (PUBLISH); and where tokens were set aside and are left: the last token used, the last one set
--          aside. What is left out at the end has the value in brackets.
-- Returns  1 done, 0 the hold is not the owner (nothing was changed)
-- Idempotent because the count is set, and because a hold is never used again once it is gone.

local call = redis.call
local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]
local hold, target = ARGV[1], ARGV[2] or '0'

if target == '0' then
  -- The common cases first, before the rest is even defined.
  local mine, prepared = unpack(call('HMGET', base, hold, 'next'))
  if not mine then
    return call('HDEL', base, hold) -- 0, or an error if this is a replica that does not know yet
  end

  -- Somebody waits, and the hand-over is prepared. On a server that has been idle each kind of command costs several
  -- microseconds here, and so does each key; a waiter waits for their sum.
  if prepared and (ARGV[5] or 'PUBLISH') == 'PUBLISH' then
--- include handover
    if given then
      return 1
    end
  end

  -- Nobody waits.
  local waiting = call('ZCARD', queue)
  if waiting == 0 then
    call('DEL', base)
    if ARGV[7] and call('GET', token_key) == ARGV[7] then
      call('INCRBY', token_key, ARGV[6] - ARGV[7])
    end
    return 1
  end

--- include enter
--- include grant

  local last = last_token(token_key)
  local used = ARGV[7] and last == tonumber(ARGV[7]) and tonumber(ARGV[6]) or last
  grant(base, queue, token_key, last, used, ARGV[5] or 'PUBLISH', nil, hold, waiting)
  return 1
end

--- include enter
--- include owner

local held_by, _, last = owner(base)
if held_by ~= hold then
  return call('HDEL', base, hold) -- as above
end
update(base, hold, target, tonumber(ARGV[3]), last, tonumber(ARGV[4]))
return 1
