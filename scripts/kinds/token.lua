-- Returns the fencing tokens of holds that have their locks: for writers and readers the token of
-- the last writer, for permits a new token.
--
-- Returns  the token, 0 the hold is gone
-- Safe to repeat: a repeat may draw a larger token, and nobody uses the smaller one.
return each(#KEYS / 4, function(i)
  local lock, a = unit(i)
  if tonumber(call('ZSCORE', lock.base, a.member) or 0) <= clock(lock) then
    return call('ZREM', lock.base, '') -- 0, or READONLY
  end
  local known = tonumber(a.mode) and 0 or last(lock)
  return known > 0 and known or draw(lock)
end)
