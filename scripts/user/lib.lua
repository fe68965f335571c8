
-- Returns the reply or the error of a script of the user as a part of a reply. An error of its own
-- would look like an error of the server, and some of those ask for a repeat.
local function result(ok, reply)
  if ok or type(reply) == 'table' then
    return reply
  end
  return redis.error_reply('ERR ' .. tostring(reply))
end

