-- Takes the lock for a hold, enters it again, asks whether a grant has come, or joins the queue.
--
-- KEYS     base, queue, token
-- ARGV     hold, lease ms (0: leave it alone); target count (1), step (1), publish command (PUBLISH); from a hold that
--          would wait: client id (''), first arrival in microseconds (0: not in the queue yet); how many tokens to set aside
--          beyond its own (0). What is left out at the end has the value in brackets: in the common case each argument
--          would cost a tenth of what the script does.
-- Returns  token                                        the hold owns the lock, with the target count
--          0                                            the hold had entered before and is not the owner any more
--          {remaining ms, owner}                        another hold owns it; if it was to wait: nobody hears the
--                                                       client's channel here, so it would wait in vain
--          {remaining ms, owner, arrival, position, token}
--                                                       and this one is queued, with position waiters before it; a grant
--                                                       with that token or a lower one is from before this answer
-- Idempotent because the count is set, never added to, and a queued hold keeps its place.

local call = redis.call
local base, queue, token_key = KEYS[1], KEYS[2], KEYS[3]
local hold = ARGV[1]

-- The common case first, before the rest is even defined: nobody holds it and nobody waits.
if (ARGV[3] or '1') == '1' and call('EXISTS', base, queue) == 0 then
--- include last
  local used = last
--- include token
  if ARGV[8] then
    call('INCRBY', token_key, ARGV[8])
  end
  call('HSET', base, hold, '1')
  local ttl = ARGV[2]
--- include lease
  return token
end

--- include enter
--- include owner
--- include grant
--- include ask

return ask(base, queue, token_key, hold, ARGV[2], tonumber(ARGV[3] or 1), tonumber(ARGV[4] or 1), ARGV[5] or 'PUBLISH',
  ARGV[6] or '', tonumber(ARGV[7] or 0), ARGV[8])
