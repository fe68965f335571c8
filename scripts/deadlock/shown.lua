-- Reads the waits that are shown under holds. Writes nothing.
--
-- KEYS     <prefix>{<hold>}:waits
-- Returns  a list of waits
return each(#KEYS, function(i)
  return call('HVALS', KEYS[i])
end)
