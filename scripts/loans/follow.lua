-- Looks after loans.
--
-- KEYS     base, loans
-- ARGV     lender, loan, control channel of its client
-- Returns  ms for which the lender's lock is kept (1 or more); 0 the lender or the loan is gone;
--          -1 the lender has left, and recalls the loan
-- Idempotent because nothing but the end of the loan is set.
return each(#KEYS / 2, function(i)
  local base, loans, lender, loan = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i - 2], ARGV[3 * i - 1]
  if call('HEXISTS', base, lender) == 0 or not isOf(loans, lender) or call('HEXISTS', loans, loan) == 0 then
    return call('HDEL', base, '') -- 0, or READONLY
  end
  local kept = keep(base, loans, loan, ARGV[3 * i])
  return hasLeft(loans, lender) and -1 or kept
end)
