-- Included, after enter, owner and grant, by the scripts that ask for a lock: what is asked where it is held, or others
-- wait. See acquire for what goes in and comes out; lease and tokens are as they stand in ARGV.

local function ask(base, queue, token_key, hold, lease, target, step, publish, client, first_arrival, tokens)
  local ttl, aside = tonumber(lease), tonumber(tokens or 0)
  local last_given = last_token(token_key) -- before anything is changed: it ends the script if the key holds no token
  local held_by, _, last, shown, prepared, before = owner(base)
  if held_by == hold then
    update(base, hold, target, step, last, ttl)
    if not before and last_given == 0 then
      last_given = next_token(token_key, 0, 0, aside) + aside -- the key was lost
    end
    return (before or last_given) - aside
  end
  if target > 1 then
    return call('HDEL', base, hold) -- 0, or an error if this is a replica that does not know yet
  end

  if not held_by then
    -- Free while others queue: the last owner's lease ran out. They were first.
    local first, token = grant(base, queue, token_key, last_given, last_given, publish, hold, nil)
    if not first then
      return enter(base, token_key, last_given, hold, ttl, aside)
    end
    if first == hold then
      return token
    end
    held_by, shown, prepared, before, last_given = first, first, nil, nil, last_token(token_key)
  end

  local remaining = call('PTTL', base)
  if client == '' or not reach(publish, base .. ':' .. client) then
    return {remaining, shown}
  end

  -- The owner may still be first in the queue, see enter.
  local head = call('ZRANGE', queue, 0, 0)[1]
  local changed = head and string.match(head, '^[^|]*') == held_by
  if changed then
    call('ZPOPMIN', queue)
  end

  local member = hold .. '|' .. client .. '|' .. lease .. (aside > 0 and '|' .. tokens or '')
  local arrival = tonumber(call('ZSCORE', queue, member))
  if not arrival then
    arrival = first_arrival
    if arrival == 0 then
      -- Behind everybody, also when two arrive in one microsecond or the clock has been turned back. But a score that Lua cannot
      -- count is none of ours.
      local tail = tonumber(call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]) or 0
      arrival = math.max(now_us(), tail < 9e15 and tail + 1 or 0)
    end
    call('ZADD', queue, arrival, member)
    changed = true
  end
  -- A waiter asks again within its own lease after the owner's: its entry outlives that.
  local keep = math.max(remaining, ttl) + ttl + 60000
  if call('PTTL', queue) < keep then
    call('PEXPIRE', queue, keep)
  end

  -- Where the key was lost, what was granted before was before now. (And where the server's clock has gone back while this
  -- runs, a key whose lease was set since then is gone, as Redis looks at the time of the beginning.)
  local position = call('ZRANK', queue, member) or 0
  local reply = {remaining, shown, arrival, position, last_given > 0 and last_given or now_us()}
  local heir, digits = string.match(prepared or '', '^(.*)|(%d+)$')
  if heir == member then
    reply[5] = tonumber(digits) - 1 -- the grant to come has the last one
  elseif changed and remaining ~= -2 then
    prepare(base, queue, token_key, held_by, heir, before, last_given, publish)
  end
  return reply
end
