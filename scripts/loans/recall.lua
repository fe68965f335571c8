-- Frees the locks of holds that may have lent them. With open loans the lock stays, and the loans
-- are recalled: the last return frees the lock.
--
-- KEYS     base, queue, loans
-- ARGV     publish command; lender
-- Returns  1 freed, 2 recalled, 0 the hold is gone, 3 call again: only dead waiters so far
-- Idempotent because a hold that is gone never comes back.
return each(#KEYS / 3, function(i)
  local base, queue, loans, lender = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], ARGV[i + 1]
  local lent = isOf(loans, lender)
  if lent and recall(loans) and call('HEXISTS', base, lender) == 1 then
    set(loans, 'recalled', '1') -- also at maxmemory: an exit must not fail
    rest(base, loans) -- as long as the lock: nobody may borrow, or accept, any more
    return 2
  end
  local freed = release(base, queue, ARGV[1], lender)
  if lent and freed ~= 3 then
    call('DEL', loans)
  end
  return freed
end)
