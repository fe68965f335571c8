-- Takes back whatever a hold may have left: its place in the queue, or a lock that was granted to it meanwhile.
--
-- KEYS     base, queue, token
-- ARGV     hold, client id, lease ms (and what stands behind it in the queue), publish command
-- Returns  2 it owned the lock, which is free or granted to the next now; 1 it was queued; 0 nothing was there
-- Idempotent because a hold is never used again.

local call = redis.call

--- include enter
--- include grant

local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]
local hold = ARGV[1]

if call('HEXISTS', base, hold) == 0 then
  local member = hold .. '|' .. ARGV[2] .. '|' .. ARGV[3]
  local there = call('ZREM', queue, member)
  local prepared = call('HMGET', base, NEXT)[1]
  if prepared and string.match(prepared, '^(.*)|') == member then
    call('HDEL', base, NEXT)
  end
  return there
end
local last = last_token(token_key)
grant(base, queue, token_key, last, last, ARGV[4], nil, hold)
return 2
