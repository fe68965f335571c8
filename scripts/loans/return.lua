-- Ends loans. The last loan of a lender that has left frees the lock, or grants the lock to the
-- first waiter.
--
-- KEYS     base, queue, loans
-- ARGV     publish command; lender, loan
-- Returns  1 returned, or not known; 0 the lender is gone; 3 call again: only dead waiters so far
-- Idempotent because a loan that is gone never comes back.
return each(#KEYS / 3, function(i)
  local base, queue, loans = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local lender, loan = ARGV[2 * i], ARGV[2 * i + 1]
  if call('HEXISTS', base, lender) == 0 then
    return call('HDEL', base, '') -- 0, or READONLY
  elseif not isOf(loans, lender) then
    return 1
  end
  call('HDEL', loans, loan)
  if not hasLeft(loans, lender) or #open(loans) > 0 then
    return 1
  end
  local freed = release(base, queue, ARGV[1], lender)
  if freed == 1 then
    call('DEL', loans)
  end
  return freed
end)
