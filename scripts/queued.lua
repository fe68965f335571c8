-- Counts the waiters of locks. Writes nothing.
--
-- KEYS     queue
-- Returns  the number of waiters, those whose clients are dead too
return each(#KEYS, function(i)
  return call('ZCARD', KEYS[i])
end)
