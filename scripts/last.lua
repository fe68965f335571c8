-- Included where the last token is wanted: token_key names its key, and last is what is there, 0 if nothing is. A key that
-- holds no number, or one with more digits than Lua can count up, ends the script here, before anything has changed.
local last = call('GET', token_key) or '0'
if last ~= '0' and not string.match(last, '^[1-9]%d*$') then
  call('INCRBY', token_key, 0) -- Redis's own words for what is wrong
end
if #last > 16 then
  error(token_key .. ' holds a number that is too large for a token')
end
last = tonumber(last)
