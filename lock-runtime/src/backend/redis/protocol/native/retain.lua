-- Keeps the lock taken after its holder has left, until its minimum hold time is over. Its expiry then frees it, and
-- the next probe of a waiter hands it on. Nobody can renew it until then, because the grant names no session.
--
-- KEYS: grant, queue, fence, claim
-- ARGV: 1 token, 2 until when (server time in µs), 3 the maximum extension, in ms, 4 floor, 5 claim in ms
local held = redis.call('GET', KEYS[1])
local token, owners = string.match(held or '', '^(%d+)|%d+|[^|]*|(.*)$')
if token ~= ARGV[1] then
  return 0 -- not held under this token: nothing was touched
end
local time = redis.call('TIME')
local left = math.ceil((tonumber(ARGV[2]) - time[1] * 1000000 - time[2]) / 1000)
local longer = string.format('%.0f', math.min(left, tonumber(ARGV[3])))
if tonumber(longer) < 1 then
  grant_next(redis.call('ZPOPMIN', KEYS[2]), KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[4], ARGV[5])
  return 1 -- the hold time is over: released
end
redis.call('DEL', KEYS[4]) -- the expiry must not count as a sign of a process that does not listen
redis.call('PEXPIRE', KEYS[1], longer) -- first, because it is allowed when the server is out of memory
redis.call('SET', KEYS[1], token .. '|' .. longer .. '||' .. owners, 'PX', longer)
return 1 -- retained
