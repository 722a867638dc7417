-- Keeps the lock taken after its holder has left, until its minimum hold time is over. Nobody can renew it until then,
-- because it is stored under token 0.
--
-- KEYS: lock, counter
-- ARGV: 1 token, 2 until when (server time in µs), 3 the maximum extension, in ms
local field, owner, token = ours(KEYS[1])
if token ~= ARGV[1] then
  return 0 -- not held under this token: nothing was touched
end
local time = redis.call('TIME')
local left = math.min(math.ceil((tonumber(ARGV[2]) - time[1] * 1000000 - time[2]) / 1000), tonumber(ARGV[3]))
if left < 1 then
  redis.call('DEL', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left)) -- first: allowed when the server is out of memory
  redis.call('HSET', KEYS[1], owner .. ':0', string.format('%.0f', left)) -- first, or the key would go with the other
  redis.call('HDEL', KEYS[1], field)
end
tell(KEYS[2]) -- the waiters know a longer lease: they look again, and learn this one
return 1 -- released, or retained
