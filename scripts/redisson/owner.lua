-- Included by the scripts of Redisson's layout. There a lock is
--   name                        hash    <hold> -> count, where a hold is <uuid>:<number>; its TTL is the lease
--   redisson_lock_token:{name}  string  the last fencing token, for a fenced lock only; it has no TTL
-- and one channel, where 0 is published when the lock becomes free: redisson_lock__channel:{name}.
--
-- Counts are set as in our own layout, and so a command that runs late could set an old one. There each re-entry notes
-- its step for that; here the hash is to be what Redisson would have made of it. So a step is noted only once a command
-- of the hold has had no answer and may run late: then every later one brings a guard. Redisson never looks at
-- fields other than its own, and deletes the hash as a whole, so the note needs no end of its own. (A key beside the hash
-- would: it would outlive a lock that Java frees by force, and could not be in the slot of the lock and at the same time
-- begin with its name, which is what a user limited to ~app:* may touch.)

local STEP = 'relock:step'

-- Sets the count and the lease of a hold that is there, unless a later step of it has been here already. A lease only
-- moves later; 0 leaves it alone.
local function update(base, hold, count, step, guard, ttl)
  if step < (tonumber(redis.call('HGET', base, STEP)) or 0) then
    return
  end
  redis.call('HDEL', base, STEP) -- needs no memory; after it Redis lets the script write although memory has run out
  redis.call('HSET', base, hold, count)
  if guard then
    redis.call('HSET', base, STEP, step)
  end
  if ttl > 0 and redis.call('PTTL', base) <= ttl then -- also the same: WAIT looks at no more than its connection has written
    redis.call('PEXPIRE', base, ttl)
  end
end

-- Who holds the lock, and how often; nil when it is free. Of a read-write lock of Redisson, which may be under the name by
-- mistake, one holder.
local function owner(base)
  local fields = redis.call('HGETALL', base)
  for i = 1, #fields, 2 do
    if fields[i] ~= STEP and fields[i] ~= 'mode' then
      return fields[i], tonumber(fields[i + 1]) or 0
    end
  end
  return fields[1], 0
end
