-- Runs a script of the user while a loan is open. The functions of loans/lib.lua stand in front.
--
-- KEYS     base, loans, then the keys of the script
-- ARGV     lender, loan, then the arguments of the script
-- Returns  {1, reply or error of the script}; {0} the lender or the loan is gone, and the script has
--          not run
-- Not safe to repeat: the script of the user may add to state.
local base, loans = table.remove(KEYS, 1), table.remove(KEYS, 1)
local lender, loan = table.remove(ARGV, 1), table.remove(ARGV, 1)
local ends = isOf(loans, lender) and string.match(call('HGET', loans, loan) or '', '^(%d+)|')
if call('HEXISTS', base, lender) == 0 or not ends or tonumber(ends) <= clock() then
  return {call('HDEL', base, '')} -- 0; a write, as a replica that is behind must say READONLY
end
local ok, reply = pcall(script, KEYS, ARGV)
return {1, result(ok, reply)}
