-- Redeems a one-time token.
--
-- KEYS     ticket
-- ARGV     caller
-- Returns  {1, data} the token is the caller's, also when the same caller asks again; {0} unknown;
--          {2} another caller has redeemed it
local by, data = unpack(redis.call('HMGET', KEYS[1], 'by', 'data'))
if not data then
  return {0}
elseif by and by ~= ARGV[1] then
  return {2}
end
redis.call('HSET', KEYS[1], 'by', ARGV[1])
return {1, data}
