-- Lists who waits for a lock of any kind, by turn. Writes nothing.
--
-- KEYS     queue
-- ARGV     publish command; base; the last place to look at, as a long script keeps Redis from others
-- Returns  {hold, mode ('': of a mutex), milliseconds of its wait (-1: not known), and so on} of the
--          waiters whose clients listen: a release skips all others; 0: Redis refuses a command here,
--          as to a user who only looks at locks
local upgrade = 1 -- the arrival of a reader that waits to write
local ok, waiters = pcall(function()
  local time = call('TIME')
  local now, waiters = time[1] * 1000000 + time[2], {}
  local places = call('ZRANGE', KEYS[1], 0, ARGV[3], 'WITHSCORES')
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
end)
return ok and waiters or 0
