-- Removes the record of an attempt that has failed: the next one begins anew. Runs in Eval.
--
-- KEYS     record
-- ARGV     attempt
-- Safe to repeat.
if redis.call('HGET', KEYS[1], 'attempt') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 1
