-- Lists who waits for a lock, by turn.
-- KEYS: the queue. ARGV: the key of the lock; the last place to look at.
-- Returns, for each waiter whose client listens, { holder, mode, milliseconds of its wait }. A
-- reader that waits to write has -1, as its place has no arrival.
-- Idempotent because it only reads.
local upgrade = 1

-- A server before Redis 7 does not know sharded pub/sub.
local function listens(channel)
  if redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    return true
  end
  local sharded = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)
  return not sharded.err and sharded[2] > 0
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local places = redis.call('ZRANGE', KEYS[1], 0, ARGV[2], 'WITHSCORES')
local queue = {}
for i = 1, #places, 2 do
  -- <client>:<holder>:<hold>|<lease>, and for other kinds than mutexes |<mode>|<hold around>
  local client, holder, mode = string.match(places[i], '^([^|]*):(%d+):%d+|%d+|?([^|]*)')
  if client and listens(ARGV[1] .. ':' .. client) then
    local arrival, wait = tonumber(places[i + 1]), -1
    if arrival ~= upgrade then
      wait = math.max(0, math.floor((now - arrival) / 1000))
    end
    queue[#queue + 1] = { client .. ':' .. holder, mode, wait }
  end
end
return queue
