-- Moves locks to new holds: they are not free in between.
--
-- KEYS     base, loans
-- ARGV     old hold, its control channel, new hold, lease ms, when the ticket expires (ms, 0: never),
--          '1' if the client of the old hold may still count on its lease: the new hold begins after it
-- Returns  1 + the ms to wait for the end of the old lease; 0 the old hold is gone, or has left;
--          -2 the ticket has expired
-- Idempotent because a hold that has moved is found under its new name.
return each(#KEYS / 2, function(i)
  local base, loans, at = KEYS[2 * i - 1], KEYS[2 * i], 6 * (i - 1)
  local old, channel, new, ttl = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local expires, wait = tonumber(ARGV[at + 5]), 0
  if call('HEXISTS', base, new) == 1 then
    set(base, new, '1') -- WAIT looks only at the writes of its own connection
    wait = call('PTTL', base) - ttl
  elseif call('HEXISTS', base, old) == 0 or hasLeft(loans, old) then
    return call('HDEL', base, '') -- 0, or READONLY
  elseif expires > 0 and expires <= clock() then
    return -2
  else
    if ARGV[at + 6] == '1' then
      wait = call('PTTL', base)
    end
    enter(base, new, ttl + math.max(wait, 0), old)
    tell('PUBLISH', channel, old) -- else the client finds out with its next renewal
    if isOf(loans, old) then
      recall(loans)
      call('DEL', loans)
    end
  end
  return 1 + math.max(wait, 0)
end)
