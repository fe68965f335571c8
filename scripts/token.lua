-- Draws fencing tokens for holds that have their locks.
--
-- KEYS     base, token
-- ARGV     hold, floor
-- Returns  the token, 0 the hold is gone
-- Safe to repeat: a repeat draws a larger token, and nobody uses the smaller one.
--
-- A token is never below the clock of the server, so a lost key cannot turn tokens back, and always
-- above the last one, so the clock cannot either. The token is above the floor too: a store over
-- several servers has drawn the floor elsewhere. The key lives until a day after its token. Lua
-- counts microseconds exactly until the year 2255.
return each(#KEYS / 2, function(i)
  local base, key = KEYS[2 * i - 1], KEYS[2 * i]
  local hold, floor = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  if call('HEXISTS', base, hold) == 0 then
    return call('HDEL', base, hold) -- 0, or READONLY
  end
  local last = call('GET', key) or '0'
  if not string.match(last, '^%d+$') or tonumber(last) > 9e15 then
    error(key .. ' holds no token, or one that is too large')
  elseif floor > 9e15 then
    error('the floor of the token is too large')
  end
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  local token = math.max(now, last + 1, floor + 1)
  local keep = 24 * 60 * 60 * 1000 + math.ceil((token - now) / 1000)
  call('SET', key, string.format('%.0f', token), 'PX', string.format('%.0f', keep))
  return token
end)
