-- Remove the taken jobs with the ids ARGV. KEYS[1]: ids of taken jobs; KEYS[2]: bodies by id.
-- Returns how many there were: a job whose lease has ended may be another worker's.
local found = redis.call('ZREM', KEYS[1], unpack(ARGV))
redis.call('HDEL', KEYS[2], unpack(ARGV))
return found
