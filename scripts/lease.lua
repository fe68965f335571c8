-- Included where a hash has just been made for an owner: base is its key, and ttl its lease. A user of Redis who must not set one
-- leaves no lock without an end, which would be nobody's for ever.
if redis.pcall('PEXPIRE', base, ttl) ~= 1 then
  call('DEL', base)
  call('PEXPIRE', base, ttl) -- says it in Redis's own words
end
