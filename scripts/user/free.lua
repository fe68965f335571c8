-- Runs a script of the user if nobody has a lock, and nobody waits for it.
--
-- KEYS     base, queue, then the keys of the script
-- ARGV     publish command, which is not needed, then the arguments of the script
-- Returns  {1, reply or error of the script}; {0} somebody has the lock, or waits for it, and the
--          script has not run
-- Not safe to repeat: the script of the user may add to state.
local base, queue = table.remove(KEYS, 1), table.remove(KEYS, 1)
table.remove(ARGV, 1)
if redis.call('EXISTS', base, queue) ~= 0 then
  return {0}
end
redis.call('HDEL', base, '') -- a write, as a replica that is behind must say READONLY
local ok, reply = pcall(script, KEYS, ARGV)
return {1, result(ok, reply)}
