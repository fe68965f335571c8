-- Stores the end of an attempt, and tells it to all who wait. Runs in Eval. Who is not told looks
-- again at times.
--
-- KEYS     record, waiters
-- ARGV     attempt, number, fingerprint, state: done or failed, result, ms to keep the record
-- Returns  1 stored, 0 another attempt has begun since
-- Safe to repeat.
local record, waiters = KEYS[1], KEYS[2]
local attempt, number, input, state, result = unpack(ARGV)
local begun = redis.call('HGET', record, 'attempt')
if begun == attempt then
  redis.call('HSET', record, 'state', state, 'result', result)
elseif begun then
  return 0
else -- Redis has lost the record
  redis.call('HSET', record, 'state', state, 'attempt', attempt, 'number', number, 'input', input, 'result', result)
end
redis.call('PEXPIRE', record, ARGV[6])
local channels = redis.call('SMEMBERS', waiters)
for _, channel in ipairs(channels) do
  redis.pcall('PUBLISH', channel, table.concat({record, input, state, result}, '\n'))
end
if #channels > 0 then
  redis.call('DEL', waiters)
end
return 1
