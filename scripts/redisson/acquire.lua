-- Takes a lock of Redisson's layout for a hold, which is <uuid>:<number> there:
--   name                        hash    <hold> -> count
--   redisson_lock_token:{name}  string  the last token of a fenced lock, without a TTL
--
-- KEYS     name, and of fenced locks the token key
-- ARGV     hold, lease ms
-- Returns  {status, owner, remaining ms of its lease, token}, without what is not known
--          1  the hold has the lock; if it had the lock before, its lease is as it was
--          0  busy
--          4  the name is another kind of lock, and the owner is that kind
-- Idempotent because a hold that has the lock keeps its lease, and the last token is its own.
local step = #KEYS / (#ARGV / 2)
return each(#ARGV / 2, function(i)
  local base, key = KEYS[step * (i - 1) + 1], step > 1 and KEYS[step * i]
  local hold, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  if call('EXISTS', base) == 0 then
    local token = key and call('INCR', key) or 0 -- first: an error leaves the lock free
    if key and token < 1 or token > 9e15 then
      error(key .. ' holds a number that is too small or too large for a token')
    end
    enter(base, hold, ttl)
    return {1, hold, tonumber(ttl), token}
  end
  local has, count = owner(base)
  if has == hold then
    set(base, hold, count)
    local token = key and (tonumber(call('GET', key)) or call('INCR', key)) or 0
    return {1, hold, call('PTTL', base), token}
  elseif call('HEXISTS', base, 'mode') == 1 then
    return {4, 'a read-write lock of Redisson'}
  end
  -- pcall: a user of Redis may be confined to the names of locks.
  local tag = string.find(base, '{', 1, true) and base or '{' .. base .. '}'
  if redis.pcall('EXISTS', 'redisson_lock_queue:' .. tag) == 1 then
    return {4, 'a fair lock of Redisson'}
  end
  return {0, has, call('PTTL', base)}
end)
