-- Take up to ARGV[1] due jobs, the earliest first, each under a lease of ARGV[2] milliseconds.
-- KEYS[1]: ids by due time; KEYS[2]: ids of taken jobs by the end of their lease; KEYS[3]: bodies.
-- Returns ids and bodies: {id, body, id, body, ...}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A worker that did not acknowledge in time has lost its job: it is due again.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)) do
  redis.call('ZREM', KEYS[2], id)
  redis.call('ZADD', KEYS[1], now, id)
end

local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #ids == 0 then
  return {}
end
local bodies = redis.call('HMGET', KEYS[3], unpack(ids))
local found, leases = {}, {}
for place, id in ipairs(ids) do
  found[2 * place - 1], found[2 * place] = id, bodies[place]
  leases[2 * place - 1], leases[2 * place] = now + ARGV[2], id
end
redis.call('ZREM', KEYS[1], unpack(ids))
redis.call('ZADD', KEYS[2], unpack(leases))
return found
