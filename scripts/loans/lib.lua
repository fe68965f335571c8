-- Functions for loans, and for holds that move to another client: this file stands behind lib.lua.
--
-- The lender is the hold that has the lock. Its loans are two kinds of keys in the slot of the
-- lock, each with a TTL:
--   base:loans       hash    lender -> the lender; recalled -> 1, once the lender has left; and each
--                            open loan -> the control channel of its client
--   base:loans:<id>  string  the loan, or the hold, that has used the ticket with that ID
-- The lock goes on when the lender has left and no loan is open, or when its lease is over.

-- Says whether the loans are those of this lender. Another lender's are over.
local function isOf(loans, lender)
  return call('HGET', loans, 'lender') == lender
end

-- Keeps the loans for as long as a borrower may count on the lease of the lender. Returns the rest
-- of that lease in ms, at least 1.
local function rest(base, loans)
  local left = math.max(call('PTTL', base), 1)
  if call('PTTL', loans) < left + 1000 then
    call('PEXPIRE', loans, left + 1000)
  end
  return left
end

-- Tells the clients of all open loans to look. Returns whether there are any.
local function recall(loans)
  local fields, open = call('HGETALL', loans), false
  for i = 1, #fields, 2 do
    if fields[i] ~= 'lender' and fields[i] ~= 'recalled' then
      open = true
      call('PUBLISH', fields[i + 1], fields[i])
    end
  end
  return open
end

-- Returns the ms until a time of the server's clock, or for 0 a long time.
local function untilTime(ms)
  local time = call('TIME')
  return ms > 0 and ms - (time[1] * 1000 + math.floor(time[2] / 1000)) or math.huge
end
