-- Keeps the lock taken after its holder has left, until the minimum hold time is over. When the grant expires, the lock
-- is free, and the next probe grants it to a waiter. Until the grant expires, nobody can renew it, because it names no
-- session.
--
-- KEYS: grant, queue, fence, claim
--
-- ARGV:
-- 1. token
-- 2. the end of the minimum hold time (server time in µs)
-- 3. the longest time for which to retain the lock, in ms
-- 4. token floor (see next_token.lua)
-- 5. time within which a session must confirm a grant (a claim), in ms
local held = read(KEYS[1])
local reader = held == SHARED and redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1], 'BYSCORE')[1]
local token, owners = string.match(held or '', '^(%d+)|%d+|[^|]*|(.*)$')
if token ~= ARGV[1] and not reader then
  return 0 -- the lock is not held with this token: nothing was changed
end
local time = redis.call('TIME')
local left = math.ceil((tonumber(ARGV[2]) - time[1] * 1000000 - time[2]) / 1000)
local longer = string.format('%.0f', math.min(left, tonumber(ARGV[3])))
if reader then
  if tonumber(longer) < 1 then
    readers().remove(KEYS[1], reader)
    readers().beside(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[4], ARGV[5], '', true)
    return 1 -- released, because the minimum hold time is over
  end
  local mode, rest = string.match(reader, '^[^|]*|%d+|%d+([rp][%d/]*)|[^|]*|(.*)$')
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(longer)))
  readers().add(KEYS[1], tonumber(ARGV[1]), longer .. mode .. '||' .. rest, tonumber(longer), '', time[1] * 1000000 + time[2])
  redis.call('ZREM', KEYS[1], reader)
  readers().expire(KEYS[1], time[1] * 1000000 + time[2])
  return 1 -- retained
end
if tonumber(longer) < 1 then
  grant_next(redis.call('ZPOPMIN', KEYS[2]), KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[4], ARGV[5])
  return 1 -- released, because the minimum hold time is over
end
redis.call('DEL', KEYS[4]) -- a claim that expires makes the session look as if it were not listening
redis.call('PEXPIRE', KEYS[1], longer) -- a server that is out of memory allows SET only after PEXPIRE
redis.call('SET', KEYS[1], token .. '|' .. longer .. '||' .. owners, 'PX', longer)
return 1 -- retained
