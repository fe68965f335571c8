-- Notes to which hold a process has passed the lock that it has. Until then, and for whatever changes the lock, it is that
-- of the hold to which Redis gave it.
--
-- KEYS     base
-- ARGV     the hold to which Redis gave it, number of the pass, the hold that has it now
-- Returns  1 done, or known better already; 0 the first hold is not the owner (nothing was changed)
-- Idempotent because passes are numbered: one that runs late does not hide a later one.

local call = redis.call

--- include enter

local base = KEYS[1]
local there, known = false, 0
local fields = call('HGETALL', base)
for i = 1, #fields, 2 do
  if fields[i] == ARGV[1] then
    there = true
  elseif fields[i] == AS then
    known = tonumber(string.match(fields[i + 1], '^(%d+)|')) or 0
  end
end
if not there then
  return call('HDEL', base, ARGV[1]) -- 0, or an error if this is a replica that does not know yet
end
if known < tonumber(ARGV[2]) then
  call('HSET', base, AS, ARGV[2] .. '|' .. ARGV[3])
end
return 1
