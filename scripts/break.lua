-- Frees locks if those very holds have them, and has their clients look at once.
--
-- KEYS     base, queue
-- ARGV     publish command; hold, control channel of its client
-- Returns  1 freed, 0 the hold is gone, 3 call again: only dead waiters so far
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS / 2, function(i)
  local freed = release(KEYS[2 * i - 1], KEYS[2 * i], ARGV[1], ARGV[2 * i])
  if freed == 1 then
    tell('PUBLISH', ARGV[2 * i + 1], ARGV[2 * i]) -- else the client finds out with its next renewal
  end
  return freed
end)
