-- Takes back an attempt that has done nothing: the next one begins anew. If an attempt before was
-- interrupted, the next one is told so all the same.
--
-- KEYS     record
-- ARGV     attempt
-- Safe to repeat.
local attempt, open = unpack(redis.call('HMGET', KEYS[1], 'attempt', 'open'))
if attempt ~= ARGV[1] then
  return 0
elseif open == '1' then
  return redis.call('HSET', KEYS[1], 'attempt', '')
end
return redis.call('DEL', KEYS[1])
