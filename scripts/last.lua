-- Included where the last token is wanted: token_key names its key, and last is what is there, 0 if nothing is. A key that
-- holds no number, or one that is larger than Lua can count, ends the script here, before anything has changed.
local last = call('GET', token_key) or '0'
if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
  call('INCRBY', token_key, 0) -- Redis's own words for what is wrong
end
last = tonumber(last)
if last > 9e15 then -- near 2^53
  error(token_key .. ' holds a number that is too large for a token')
end
