-- Keeps the lock taken after its holder has left, until the minimum hold time is over. During this time, nobody can
-- renew the lock, because the lock is stored with token 0.
--
-- KEYS: lock
--
-- ARGV:
-- 1. token
-- 2. the end of the minimum hold time (server time in µs)
-- 3. the longest time for which to retain the lock, in ms
local field, owner, token = ours(KEYS[1])
if token ~= ARGV[1] then
  return 0 -- the lock is not held with this token: nothing was changed
end
local time = redis.call('TIME')
local left = math.min(math.ceil((tonumber(ARGV[2]) - time[1] * 1000000 - time[2]) / 1000), tonumber(ARGV[3]))
if left < 1 then
  redis.call('DEL', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left)) -- before HSET, as required when out of memory
  redis.call('HSET', KEYS[1], owner .. ':0', string.format('%.0f', left)) -- before HDEL, so the hash is never empty
  redis.call('HDEL', KEYS[1], field)
end
tell(KEYS[1]) -- the message makes the waiters try again, and read the new time left
return 1 -- released, or retained
