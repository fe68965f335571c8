-- Functions for loans, and for holds that move to another client: this file stands behind lib.lua.
--
-- The lender is the hold that has the lock. Its loans are two kinds of keys in the slot of the
-- lock, each with a TTL:
--   base:loans       hash    lender -> the lender; recalled -> 1, once the lender has left; and for
--                            each open loan <loan> -> <end>|<control channel of its client>. Until
--                            the end, in ms of the server's clock, the borrower may count on the
--                            lease of the lender. A control channel has the holds that their client
--                            is to ask about, see break.lua
--   base:loans:<id>  string  the loan that has used the ticket with that ID
-- The lock goes on when the lender has left and no loan is open, or when its lease is over.

-- Returns the server's clock in ms.
local function clock()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Says whether the loans are those of this lender. Another lender's are over.
local function isOf(loans, lender)
  return call('HGET', loans, 'lender') == lender
end

-- Says whether this lender has left, so that only its loans keep the lock.
local function hasLeft(loans, lender)
  return isOf(loans, lender) and call('HEXISTS', loans, 'recalled') == 1
end

-- Keeps the key of the loans for a second longer than the lock: nobody may count on a loan that the
-- key does not have. Returns the rest of the time for which the lock is kept, in ms, at least 1.
local function rest(base, loans)
  local kept = math.max(call('PTTL', base), 1)
  if call('PTTL', loans) < kept + 1000 then
    call('PEXPIRE', loans, kept + 1000)
  end
  return kept
end

-- Opens a loan, or keeps it open, for as long as the lock is kept now, and returns that time.
local function keep(base, loans, loan, channel)
  local kept = math.max(call('PTTL', base), 1)
  set(loans, loan, string.format('%.0f|%s', clock() + kept, channel))
  return rest(base, loans)
end

-- Returns the open loans as a list of loan and channel, and drops those on which nobody may count any
-- more.
local function open(loans)
  local fields, now, found = call('HGETALL', loans), clock(), {}
  for i = 1, #fields, 2 do
    if fields[i] ~= 'lender' and fields[i] ~= 'recalled' then
      local ends, channel = string.match(fields[i + 1], '^(%d+)|(.*)$')
      if (tonumber(ends) or 0) > now then
        found[#found + 1] = {fields[i], channel}
      else
        call('HDEL', loans, fields[i])
      end
    end
  end
  return found
end

-- Tells the clients of all open loans to look: those who are not told do so by themselves. Returns
-- whether there are any.
local function recall(loans)
  local found = open(loans)
  for _, loan in ipairs(found) do
    tell('PUBLISH', loan[2], loan[1])
  end
  return #found > 0
end
