-- Takes one lock that is free and has no queue, as acquire does. This part stands in front of lib, as
-- the functions of lib are made anew with each call and take longer than the rest.
if #KEYS == 2 and redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  redis.call('HSET', KEYS[1], ARGV[2], '1')
  if redis.pcall('PEXPIRE', KEYS[1], ARGV[3]) == 1 then
    return 1
  end
  redis.call('HDEL', KEYS[1], ARGV[2]) -- acquire meets the error again, and raises it
end

