-- First half of a release. If the queue is empty, frees the lock, which completes the release. Otherwise removes the
-- first entry, `head`, from the queue, and release.lua continues.
--
-- KEYS: grant, queue, fence, claim
--
-- ARGV:
-- 1. `token|`, with which the stored grant begins
-- 2. token floor (see next_token.lua)
-- 3. time within which a session must confirm a grant (a claim), in ms
local held = redis.call('GET', KEYS[1])
if not held or string.find(held, ARGV[1], 1, true) ~= 1 then
  return 0 -- the lock is not held with this token: nothing was changed
end
-- The common case comes before all function definitions, because executing the definitions takes time.
local head = redis.call('ZPOPMIN', KEYS[2])
if not head[1] then
  redis.call('DEL', KEYS[1], KEYS[4])
  return 1 -- released, nobody waits
end

