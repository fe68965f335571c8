-- Reads a lock.
--
-- KEYS     base, queue, token
-- Returns  {owner ('' when free), count, remaining ms (-2 when free, -1 without a lease), last token, waiters}
-- Writes nothing.

--- include enter
--- include owner

local held_by, count = owner(KEYS[1])
return {
  held_by or '',
  count,
  redis.call('PTTL', KEYS[1]),
  tonumber(redis.call('GET', KEYS[3])) or 0,
  redis.call('ZCARD', KEYS[2]),
}
