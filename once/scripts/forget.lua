-- Removes the record of an attempt that nobody runs. Runs in TryLockIf, so it keeps the lock only to
-- be told whether somebody has it.
--
-- KEYS     record
-- ARGV     attempt: a late Forget removes no other record than the one that its caller has seen
if locked and redis.call('HGET', KEYS[1], 'attempt') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return true
