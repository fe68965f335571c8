-- Included, after enter, by the scripts that ask who owns a lock, or change what an owner says of itself.

-- Who holds the lock, how often, the last step of that hold, the hold that others are told of (the same, or that to which
-- its process has passed it), and if one was prepared, the next hand-over and the last token before it. The hold is nil when
-- the lock is free. A hash that is not of our making is a lock held by whatever stands in it.
local function owner(base)
  local fields = call('HGETALL', base)
  local hold, count, step, shown, prepared, token = nil, 0, 1, nil, nil, nil
  for i = 1, #fields, 2 do
    if fields[i] == STEP then
      step = tonumber(fields[i + 1]) or 1
    elseif fields[i] == AS then
      shown = string.match(fields[i + 1], '^%d+|(.+)$')
    elseif fields[i] == NEXT then
      prepared = fields[i + 1]
    elseif fields[i] == TOKEN then
      token = tonumber(fields[i + 1])
    else
      hold, count = fields[i], tonumber(fields[i + 1]) or 0
    end
  end
  hold = hold or fields[1]
  return hold, count, step, shown or hold, prepared, token
end

-- Sets the count and the lease of the owner, unless a later step of the same hold (last) has been here already.
-- A lease only moves later, so a command that runs late cannot shorten what a newer one has promised; 0 leaves it alone.
local function update(base, hold, count, step, last, ttl)
  if step < last then
    return
  end
  local longer = ttl > 0 and call('PTTL', base) > ttl
  -- HDEL needs no memory; after it Redis lets the script write although memory has run out.
  if step > 1 then
    call('HDEL', base, STEP)
    call('HSET', base, hold, count, STEP, step)
  elseif longer then -- the same once more: WAIT looks at no more than its connection has written
    call('HDEL', base, STEP)
    call('HSET', base, hold, count)
  end
  if ttl > 0 and not longer then -- also the same
    call('PEXPIRE', base, ttl)
  end
end
