-- Renews the leases of many holds in one call.
--
-- KEYS     base of each lock
-- ARGV     for each lock: hold
--          for each lock: lease ms; if there is only one, it is that of all
-- Returns  the positions (from 1) of the holds that are not the owner any more; nothing was changed for these
-- Idempotent because a lease is set to what it should be and only moves later.

local lost = {}
for i = 1, #KEYS do
  local ttl = tonumber(ARGV[#KEYS + i] or ARGV[#KEYS + 1])
  -- pcall: a key of another type under one name must not cost the others their renewal.
  local there = redis.pcall('HEXISTS', KEYS[i], ARGV[i])
  if there == 1 then
    if redis.call('PTTL', KEYS[i]) < ttl then
      redis.call('PEXPIRE', KEYS[i], ttl)
    end
  elseif type(there) == 'table' and not string.find(there.err, 'WRONGTYPE', 1, true) then
    return there -- who must not look does not know, and must not free it below
  else
    -- A replica that does not know yet says so when it is to write.
    local refused = redis.pcall('HDEL', KEYS[i], ARGV[i])
    if type(refused) == 'table' and string.find(refused.err, 'READONLY', 1, true) then
      return refused
    end
    lost[#lost + 1] = i
  end
end
return lost
