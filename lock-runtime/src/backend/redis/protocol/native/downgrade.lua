-- Turns the grant of a writer into that of a reader, and lets the readers at the front of the queue enter. The waiters before
-- them keep their places, so no writer gets in between.
--
-- KEYS: grant, queue, fence, claim
--
-- ARGV:
-- 1. token of the grant
-- 2. token floor (see next_token.lua)
-- 3. time within which a session must confirm a grant (a claim), in ms
local held = read(KEYS[1])
if held == SHARED then
  -- An earlier request was carried out.
  return redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1], 'BYSCORE')[1] and 1 or 0
end
local token, lease, rest = string.match(held or '', '^(%d+)|(%d+)|([^|]+|.*)$')
if token ~= ARGV[1] then
  return 0 -- the lock is not held with this token: nothing was changed
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local left = clamp(KEYS[1], lease)
redis.call('DEL', KEYS[1], KEYS[4])
readers().add(KEYS[1], token, lease .. 'r|' .. rest, left, '', now)
readers().admit(KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[3], nil, {})
return 1 -- the caller reads
