-- Frees one lock without a queue, as release does, in front of lib as in acquire.
if #KEYS == 2 and redis.call('ZCARD', KEYS[2]) == 0 then
  return redis.call('HDEL', KEYS[1], ARGV[2])
end

