-- Reads a lock.
--
-- KEYS     name, and for a fenced lock its token key
-- Returns  {owner ('' when free), count, remaining ms (-2 when free, -1 without a lease), last token, 0 waiters, owner}
-- Writes nothing.

--- include redisson/owner

local held_by, count = owner(KEYS[1])
return {
  held_by or '',
  count,
  redis.call('PTTL', KEYS[1]),
  KEYS[2] and tonumber(redis.call('GET', KEYS[2])) or 0,
  0,
  held_by or '',
}
