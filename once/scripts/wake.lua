-- Tells all who wait that an attempt is over without a result, and its lock is free.
--
-- KEYS     record, waiters
for _, channel in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  redis.pcall('PUBLISH', channel, KEYS[1] .. '\n\n\n')
end
return redis.call('DEL', KEYS[2])
