-- Included where the last token is wanted: token_key names its key, and last is what is there, 0 if nothing is. A key that
-- holds no number ends the script here, before anything has changed.
local last = call('GET', token_key) or '0'
if not string.match(last, '^%d+$') then
  call('INCRBY', token_key, 0) -- Redis's own words for what is wrong
end
last = tonumber(last)
