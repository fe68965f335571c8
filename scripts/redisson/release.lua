-- Leaves one entry of a hold, or frees the lock and tells those who wait. Also frees it for an operator, and takes back
-- what a hold that was given up may have left: that is the same.
--
-- KEYS     name
-- ARGV     hold, target count, step, lease ms (0: leave it alone), guard (0 or 1), publish command, channel
-- Returns  1 done, 0 the hold is not the owner (nothing was changed, nothing published)
-- Idempotent because the count is set, and because a hold is never used again once it is gone.

--- include redisson/owner

local base, hold, target, channel = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[7]

if redis.call('HEXISTS', base, hold) == 0 then
  return redis.call('HDEL', base, hold) -- 0, or an error if this is a replica that does not know yet
end
if target > 0 then
  update(base, hold, target, tonumber(ARGV[3]), ARGV[5] == '1', tonumber(ARGV[4]))
  return 1
end
redis.call('DEL', base)
-- In a cluster a Redisson client hears one or the other, as it is set up. A server before Redis 7 does not know SPUBLISH,
-- and nobody hears it there. Any other error is told, when all is done: somebody who has to be woken may not be.
local told = ARGV[6] == 'SPUBLISH' and redis.pcall('SPUBLISH', channel, '0')
redis.call('PUBLISH', channel, '0')
if type(told) == 'table' and told.err and not string.find(told.err, 'nknown', 1, true) then
  return told
end
return 1
