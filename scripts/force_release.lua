-- Frees the lock if the hold that the operator saw still owns it, and grants it to the first waiter.
--
-- KEYS     base, queue, token
-- ARGV     hold, publish command
-- Returns  1 freed, 0 the hold is not the owner (nothing was changed)
-- Idempotent because it names the hold: sent twice, it cannot hit the next owner.

local call = redis.call

--- include enter
--- include grant

local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]

if call('HEXISTS', base, ARGV[1]) == 0 then
  return call('HDEL', base, ARGV[1]) -- 0, or an error if this is a replica that does not know yet
end
local last = last_token(token_key)
grant(base, queue, token_key, last, last, ARGV[2], nil, ARGV[1])
return 1
