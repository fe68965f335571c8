-- Included, after clock, where a token is made: token_key names its key, last is what last.lua has found there, used is
-- the last token that some hold has had, and token is the new one afterwards.
--
-- A token is never below the server's clock, so losing the key (it expired, or Redis restarted empty or with old data)
-- cannot turn it back; and always above the last one, so the clock cannot turn it back either: the key of a token that is
-- ahead of the clock lives until the clock has passed it. SET with GET, which says the same in one command less, costs more.
--
-- The key lives until about a day after its token: set again once an hour of tokens, and where the token is ahead.
--
-- What INCRBY is given is text already: Redis would write a number as it writes any double, which takes longer than this
-- (%d is good for 31 bits where the server is a 32-bit one).
local ahead = used >= now
local more = (ahead and used + 1 or now) - last
local token = call('INCRBY', token_key, more < 2147483648 and string.format('%d', more) or more)
if ahead or last % hour + more >= hour then
  call('PEXPIRE', token_key, 24 * hour / 1000 + math.floor((token - now) / 1000))
end
