-- Runs a script of the user while a hold has its read-write lock or semaphore.
--
-- KEYS     base, then the keys of the script
-- ARGV     member of base, then the arguments of the script
-- Returns  {1, reply or error of the script}; {0} the hold is gone, and the script has not run
-- Not safe to repeat: the script of the user may add to state.
local base, member = table.remove(KEYS, 1), table.remove(ARGV, 1)
local ends, time = call('ZSCORE', base, member), call('TIME')
if not ends or tonumber(ends) <= math.floor((time[1] * 1000000 + time[2]) / 1000) then
  return {call('ZREM', base, '')} -- 0; a write, as a replica that is behind must say READONLY
end
local ok, reply = pcall(script, KEYS, ARGV)
return {1, result(ok, reply)}
