-- Lists who waits for a lock of any kind, by turn. Writes nothing.
--
-- KEYS     queue
-- ARGV     publish command; base; the last place to look at, as a long script keeps Redis from others
-- Returns  {hold, mode ('': of a mutex), milliseconds of its wait (-1: not known), and so on} of the
--          waiters whose clients listen: a release skips all others; 0: the user may not call ZRANGE
local upgrade = 1 -- the arrival of a reader that waits to write
local time = call('TIME')
local now, waiters = time[1] * 1000000 + time[2], {}
local places = redis.pcall('ZRANGE', KEYS[1], 0, ARGV[3], 'WITHSCORES')
if places.err then
  return 0
end
for i = 1, #places, 2 do
  local hold, client, mode = string.match(places[i], '^((.+):%d+:%d+)|%d+|?(%w*)')
  if hold and reach(ARGV[1], ARGV[2] .. ':' .. client) then
    local arrival = tonumber(places[i + 1])
    local wait = arrival ~= upgrade and math.max(0, math.floor((now - arrival) / 1000)) or -1
    table.insert(waiters, hold)
    table.insert(waiters, mode)
    table.insert(waiters, wait)
  end
end
return waiters
