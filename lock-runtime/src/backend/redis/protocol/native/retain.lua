-- The holder has left, and the lock stays taken until its least time is over. Then its expiry frees it, and the next
-- probe of a waiter grants it to the next. Nobody renews it until then: it is no session's.
--
-- KEYS: grant, queue, fence, claim
-- ARGV: 1 token, 2 until when (server time in µs), 3 how much longer at most, in ms, 4 floor, 5 claim in ms
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
  return 1 -- its time is over: released
end
redis.call('DEL', KEYS[4]) -- its expiry will be no sign of a process that does not listen
redis.call('PEXPIRE', KEYS[1], longer) -- first, for it is allowed when the server is out of memory
redis.call('SET', KEYS[1], token .. '|' .. longer .. '||' .. owners, 'PX', longer)
return 1 -- retained
