-- Takes a free lock for which nobody waits, and has a script of the user decide in the same step.
-- acquire is the script of this name. Its answer is a status, or a list that begins with the status.
--
-- KEYS     base, queue, then the keys of the script
-- ARGV     publish command, hold, lease ms, then the arguments of the script
-- Returns  {answer of acquire, reply}: the script keeps the lock, or would if it were free;
--          {6, reply}: the script declines; {6, reply, owner}: and another hold has the lock;
--          {7, error}: the script has failed. In all three the hold does not have the lock.
--          3: call again, there were only dead waiters so far
-- Idempotent if the script of the user is.
local base, queue = table.remove(KEYS, 1), table.remove(KEYS, 1)
local publish, hold, ttl = table.remove(ARGV, 1), table.remove(ARGV, 1), table.remove(ARGV, 1)
local answer = acquire({base, queue}, {publish, hold, ttl, ''}) -- '': do not queue
local status = type(answer) == 'table' and answer[1] or answer
if status == 3 then
  return answer
end
local ok, keep, reply = pcall(script, KEYS, ARGV, status == 1)
ok = ok and not (type(keep) == 'table' and keep.err)
if ok and keep then
  return {answer, reply}
end
if status == 1 then
  repeat until release(base, queue, publish, hold) ~= 3
end
if ok then
  if status == 1 then
    return {6, reply}
  elseif reply == nil then
    reply = false -- as a list ends at its first nil
  end
  return {6, reply, answer[2]}
end
return {7, result(false, keep)}
