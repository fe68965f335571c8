-- Reads a lock.
--
-- KEYS     base, queue, token
-- Returns  {owner ('' when free), count, remaining ms (-2 when free, -1 without a lease), last token given or set
--          aside, waiters, the hold to which its process has passed it (otherwise the owner)}
-- Writes nothing.

local call = redis.call

--- include enter
--- include owner

local held_by, count, _, shown, _, token = owner(KEYS[1])
local waiting = call('ZCARD', KEYS[2])
if held_by and string.match(call('ZRANGE', KEYS[2], 0, 0)[1] or '', '^[^|]*') == held_by then
  waiting = waiting - 1
end
return {
  held_by or '',
  count,
  call('PTTL', KEYS[1]),
  token or tonumber(call('GET', KEYS[3])) or 0,
  waiting,
  shown or '',
}
