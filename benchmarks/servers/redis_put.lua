-- Put a job, due in ARGV[3] milliseconds, with the id ARGV[1] and the body ARGV[2].
-- KEYS[1]: ids by due time in milliseconds; KEYS[2]: bodies by id.
-- Returns 1, or 0 if there is a job with this id.
if redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2]) == 0 then
  return 0
end
local now = redis.call('TIME')
local due = now[1] * 1000 + math.ceil(now[2] / 1000) + ARGV[3]
redis.call('ZADD', KEYS[1], due, ARGV[1])
return 1
