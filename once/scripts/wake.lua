-- Tells all who wait that the lock of a failed attempt is free.
--
-- KEYS     record, waiters
for _, channel in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  redis.call('PUBLISH', channel, KEYS[1] .. '\n\n\n')
end
return redis.call('DEL', KEYS[2])
