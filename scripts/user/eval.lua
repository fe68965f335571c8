-- Runs a script of the user while a hold has its lock.
--
-- KEYS     base, then the keys of the script
-- ARGV     hold, then the arguments of the script
-- Returns  {1, reply or error of the script}; {0} the hold is gone, and the script has not run
-- Not safe to repeat: the script of the user may add to state.
local base, hold = table.remove(KEYS, 1), table.remove(ARGV, 1)
if call('HEXISTS', base, hold) == 0 then
  return {call('HDEL', base, hold)} -- 0; a write, as a replica that is behind must say READONLY
end
local ok, reply = pcall(script, KEYS, ARGV)
return {1, result(ok, reply)}
