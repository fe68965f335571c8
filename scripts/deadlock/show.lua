-- Shows under holds which call waits inside their sections, and for whom.
--
-- KEYS     <prefix>{<hold>}:waits
-- ARGV     lifetime ms; waiting hold, its wait ('': takes it back)
-- Returns  1
-- Idempotent because a wait is set.
return each(#KEYS, function(i)
  local hold, wait = ARGV[2 * i], ARGV[2 * i + 1]
  if wait == '' then
    call('HDEL', KEYS[i], hold)
  else
    call('HSET', KEYS[i], hold, wait)
    if call('PTTL', KEYS[i]) < tonumber(ARGV[1]) then
      call('PEXPIRE', KEYS[i], ARGV[1])
    end
  end
  return 1
end)
