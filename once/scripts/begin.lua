-- Looks for the record of a key, and begins an attempt if there is none. Runs in TryLockIf.
--
-- KEYS     record, waiters
-- ARGV     attempt, fingerprint, ms to keep the note, channel of the client, '1': do not begin
--          after an interrupted attempt
-- Returns  keep the lock, and the reply: {number of the attempt, 1: one before was interrupted};
--          or not to keep, and {state, number, result}: done, failed, mismatch or interrupted
--
-- A record is a hash: state (begun, done or failed), attempt ('' after one that was taken back, see
-- abort.lua), number, input (the fingerprint), result, and open: '1' if an attempt before this one
-- was interrupted. A begun record without anybody who has the lock is an interrupted attempt.
local record, waiters = KEYS[1], KEYS[2]
local state, attempt, number, input, open = unpack(redis.call('HMGET', record, 'state', 'attempt', 'number', 'input', 'open'))
number = tonumber(number or 0)
if state and input ~= ARGV[2] then
  return false, {'mismatch', number}
elseif state == 'done' or state == 'failed' then
  return false, {state, number, redis.call('HGET', record, 'result')}
elseif not locked then -- the finish of the attempt tells all channels
  redis.call('SADD', waiters, ARGV[4])
  -- A waiter asks again when the lease that it has met is over, and adds itself anew. The key of the
  -- lock is among the keys of this command, as TryLockIf takes that lock.
  local lease = redis.call('PTTL', string.match(record, '^(.+):once$'))
  redis.call('PEXPIRE', waiters, math.max(redis.call('PTTL', waiters), lease + 1000))
  return true
end
if attempt ~= ARGV[1] then -- else a repeat of this call
  open = state and '1' or '0'
  number = number + 1
end
if open == '1' and ARGV[5] == '1' then
  return false, {'interrupted', number - 1}
end
redis.call('HSET', record, 'state', 'begun', 'attempt', ARGV[1], 'number', number, 'input', ARGV[2], 'open', open)
redis.call('PEXPIRE', record, ARGV[3])
return true, {number, tonumber(open)}
