-- Gives no locks for a while after the start of the server: it may have come back without the locks
-- that it had. This file stands in front of the scripts that take locks, see WithRestartDelay.
--
-- ARGV     publish command; ms for which the server must have run, which is removed
local delay = tonumber(table.remove(ARGV, 2))
local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)') or '')
if not up then
  return redis.error_reply('NOUPTIME the server does not say since when it runs')
elseif up * 1000 < delay + 1000 then -- a second may not be over
  return redis.error_reply('RESTARTED the server runs for ' .. up .. ' s, and gives locks after ' .. math.ceil(delay / 1000) + 1 .. ' s')
end
