-- Included where the last token is wanted: token_key names its key, and last is the token afterwards, 0 if there is none. A
-- key that holds no number ends the script here, before anything has changed.
local last = call('GET', token_key) or '0'
if not string.match(last, '^%d+$') then
  call('INCR', token_key) -- Redis's own words for what is wrong
end
last = tonumber(last)
