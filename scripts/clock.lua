-- Included before mint, once however many tokens are made.
local time = call('TIME')
local now, hour = time[1] * 1000000 + time[2], 60 * 60 * 1000000
