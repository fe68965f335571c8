-- Says which period of a schedule it is, by the clock of the server.
--
-- KEYS     first
-- ARGV     ms of a period, ms to keep the first period; 0: it is not asked for
-- Returns  the number of the period, ms since its begin, and the number of the first period that
--          anybody has asked for
local time, period = redis.call('TIME'), tonumber(ARGV[1])
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local number = math.floor(ms / period)
local first = number
if ARGV[2] ~= '0' then
  redis.call('SET', KEYS[1], number, 'NX')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  first = tonumber(redis.call('GET', KEYS[1]))
end
return {number, ms - number * period, first}
