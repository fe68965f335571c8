-- Takes the lock for a hold, or enters it again.
--
-- KEYS     name, and for a fenced lock its token key
-- ARGV     hold, target count, step, lease ms (0: leave it alone), guard (0 or 1)
-- Returns  token, 0 if the lock is not fenced  the hold owns the lock, with the target count
--          -1                                  the hold had entered before and is not the owner any more
--          {remaining ms, owner}               another one owns it; -1 ms: for ever
-- Idempotent because the count is set, never added to. A token may grow without need, as Redisson's does, but never while
-- another one holds the lock.

--- include redisson/owner

local base, token_key = KEYS[1], KEYS[2]
local hold, target, step, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local count = tonumber(redis.call('HGET', base, hold))
if not count then
  if target > 1 then
    return -1
  end
  if redis.call('EXISTS', base) == 1 then
    return {redis.call('PTTL', base), (owner(base))}
  end
end

-- First of all that is written: if its key has another type, or memory has run out, the script ends here and nothing has
-- changed. Asked once more for the same count, a hold has its token already.
local token = 0
if token_key then
  token = count == target and tonumber(redis.call('GET', token_key)) or redis.call('INCR', token_key)
end

if count then
  update(base, hold, target, step, ARGV[5] == '1', ttl)
else
  redis.call('HSET', base, hold, 1)
  redis.call('PEXPIRE', base, ttl)
end
return token
