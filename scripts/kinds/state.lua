-- Reads locks. Writes nothing.
--
-- Returns  {type of a key that is no such lock ('': none), token (0: none), waiters; hold, mode,
--          remaining ms, and so on, the end of the first lease first}
return each(#KEYS / 4, function(i)
  local lock = unit(i)
  local found = typeOf(lock)
  local state = {'', tonumber(call('GET', lock.token)) or 0, call('ZCARD', lock.queue)}
  if found ~= 'zset' then
    state[1] = found ~= 'none' and found or ''
    return state
  end
  local last = call('ZRANGE', lock.base, -1, -1)[1]
  if not modeOf(last) then
    state[1] = 'sorted set'
    return state
  end
  local live = call('ZRANGEBYSCORE', lock.base, clock(lock) + 1, '+inf', 'WITHSCORES')
  for at = 1, #live, 2 do
    local hold, mode = string.match(live[at], '^(.*)|(%w+)$')
    table.insert(state, hold or live[at])
    table.insert(state, mode or '')
    table.insert(state, live[at + 1] - clock(lock))
  end
  return state
end)
