-- Removes the record of an attempt that nobody runs. Runs in TryLockIf, and says to keep the lock so
-- that TryLockIf refuses while somebody has it.
--
-- KEYS     record
-- ARGV     attempt: a late Forget removes no other record than the one that its caller has seen
if locked and redis.call('HGET', KEYS[1], 'attempt') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return true
