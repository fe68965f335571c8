-- Included where an owner, hold, leaves a lock whose next hand-over is prepared: base is its key, and prepared what stands
-- there for it. given says afterwards whether somebody has the lock now; where nobody hears it, nothing was done.
local heir, client, lease, token = string.match(prepared, '^([^|]+)|([^|]+)|(%d+)|(%d+)$')
local channel = base .. ':' .. client
local given = call('PUBSUB', 'NUMSUB', channel)[2] > 0
if given then
  call('HDEL', base, hold, 'step', 'as', 'next') -- needs no memory; after it Redis lets the script write all the same
  call('HSET', base, heir, '1', 'token', token)
  call('PEXPIRE', base, lease) -- behind what it is for: see ask, where the clock goes back
  call('PUBLISH', channel, heir .. '|' .. token)
end
