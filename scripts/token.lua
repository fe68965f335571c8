-- Included where a token is made: token_key names its key, and token is the new one afterwards.
--
-- A token is never below the server's clock, so losing the key (it expired, or Redis restarted empty or with old data)
-- cannot turn it back; and always above the last one, so the clock cannot turn it back either: the key of a token that is
-- ahead of the clock lives until the clock has passed it. INCR comes first: if the key has another type, or memory has
-- run out, the script ends here and nothing has changed. INCR and INCRBY work on the number in the key; SET with GET,
-- which says the same in one command, costs twice as much.
--
-- The key lives until about a day after its token: set again once an hour of tokens, and where the token is ahead.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = redis.call('INCR', token_key)
local last, hour = token - 1, 60 * 60 * 1000000
if token < now then
  token = redis.call('INCRBY', token_key, now - token)
end
if last >= now or last - last % hour ~= token - token % hour then
  redis.call('PEXPIRE', token_key, 24 * hour / 1000 + math.floor((token - now) / 1000))
end
