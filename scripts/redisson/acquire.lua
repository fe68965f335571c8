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

local call = redis.call
local base, token_key = KEYS[1], KEYS[2]
local hold, target, step, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local count = tonumber(call('HGET', base, hold))
if not count then
  if target > 1 then
    call('HDEL', base, hold) -- an error if this is a replica that does not know yet
    return -1
  end
  if call('EXISTS', base) == 1 then
    return {call('PTTL', base), (owner(base))}
  end
end

if not count then
  -- Written first: if its key is none that can be counted up, or memory has run out, the script ends here and nothing else
  -- has changed.
  local token = token_key and call('INCR', token_key) or 0
  if token_key and token < 1 or token > 9e15 then
    error(token_key .. ' holds a number that is too small or too large for a token')
  end
  call('HSET', base, hold, 1)
  local leased = redis.pcall('PEXPIRE', base, ttl)
  if type(leased) == 'table' then -- this user must not use it, and a lock without a lease is nobody's and for ever
    call('DEL', base)
    return leased
  end
  return token
end

local token
if token_key then
--- include last
  if last < 0 then
    error(token_key .. ' holds a number that is too small for a token')
  end
  token = last
end
update(base, hold, target, step, ARGV[5] == '1', ttl)
if not token_key then
  return 0
end
-- Asked once more for the same count, a hold has its token already.
return count == target and token > 0 and token or call('INCR', token_key)
