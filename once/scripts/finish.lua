-- Stores the end of an attempt, and tells it to all who wait. Runs in Eval.
--
-- KEYS     record, waiters
-- ARGV     attempt, number, fingerprint, state: done or failed, result, ms to keep the record
-- Returns  1 stored, 0 another attempt has begun since
-- Safe to repeat.
local record, waiters = KEYS[1], KEYS[2]
local attempt, number, input, state, result = unpack(ARGV)
if (redis.call('HGET', record, 'attempt') or attempt) ~= attempt then
  return 0
end
redis.call('HSET', record, 'state', state, 'attempt', attempt, 'number', number, 'input', input, 'result', result)
redis.call('PEXPIRE', record, ARGV[6])
for _, channel in ipairs(redis.call('SMEMBERS', waiters)) do
  redis.call('PUBLISH', channel, table.concat({record, input, state, result}, '\n'))
end
redis.call('DEL', waiters)
return 1
