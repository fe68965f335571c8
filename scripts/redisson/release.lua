-- Frees locks of Redisson's layout, and wakes whoever waits for them.
--
-- KEYS     name
-- ARGV     publish command, control channel of the client that is to look at once ('': none); hold,
--          channel
-- Returns  1 freed, 0 the hold is gone
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS, function(i)
  local base, hold, channel = KEYS[i], ARGV[2 * i + 1], ARGV[2 * i + 2]
  if call('HEXISTS', base, hold) == 0 then
    return call('HDEL', base, hold) -- 0, or READONLY
  end
  call('DEL', base)
  -- A Redisson client hears one kind of pub/sub. A server before Redis 7 does not know SPUBLISH.
  local sharded = ARGV[1] == 'SPUBLISH' and tell('SPUBLISH', channel, '0')
  local plain = tell('PUBLISH', channel, '0')
  if ARGV[2] ~= '' then
    tell('PUBLISH', ARGV[2], hold) -- a user may be confined to the channels of locks
  end
  raise(plain or sharded and not string.find(sharded, 'nknown', 1, true) and sharded)
  return 1
end)
