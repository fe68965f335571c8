-- Begins loans: each borrower is in the lock of a lender.
--
-- KEYS     base, loans, ticket
-- ARGV     lender, loan, control channel of its client, when the ticket expires (ms)
-- Returns  ms for which the lender's lock is kept (1 or more); 0 the lender is gone, or has left;
--          -1 the ticket was used; -2 the ticket has expired; -3 the lender has 1000 open loans
-- Idempotent because an open loan stays as it is, and the ticket remembers its loan.
return each(#KEYS / 3, function(i)
  local base, loans, ticket = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local lender, loan, channel, expires = ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], tonumber(ARGV[4 * i])
  if call('HEXISTS', base, lender) == 0 or hasLeft(loans, lender) then
    return call('HDEL', base, '') -- 0, or READONLY
  end
  local lent = isOf(loans, lender)
  if lent and call('HEXISTS', loans, loan) == 1 then
    return keep(base, loans, loan, channel)
  end
  local valid = expires - clock()
  if (call('GET', ticket) or loan) ~= loan then
    return -1
  elseif valid <= 0 then
    return -2
  elseif lent and call('HLEN', loans) > 1000 and #open(loans) >= 1000 then
    return -3
  end
  call('SET', ticket, loan, 'PX', valid) -- first, as it needs memory
  if not lent then
    call('DEL', loans)
    call('HSET', loans, 'lender', lender)
  end
  return keep(base, loans, loan, channel)
end)
