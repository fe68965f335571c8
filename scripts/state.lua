-- Reads locks, in both layouts. Writes nothing.
--
-- KEYS     base, token, queue; a layout without the last ones leaves them out
-- ARGV     how many keys a lock has
-- Returns  {owner ('' nobody), count, remaining ms (-1: no lease), token (0: none), waiters}
local keys = tonumber(ARGV[1])
return each(#KEYS / keys, function(i)
  local at = keys * (i - 1)
  local has, count = owner(KEYS[at + 1])
  local token = keys > 1 and tonumber(call('GET', KEYS[at + 2])) or 0
  local waiters = keys > 2 and call('ZCARD', KEYS[at + 3]) or 0
  return {has or '', tonumber(count) or 0, call('PTTL', KEYS[at + 1]), token, waiters}
end)
