-- First half of a release, complete if nobody waits: the lock is then free. Otherwise release.lua continues with
-- `head`.
--
-- KEYS: grant, queue, fence, claim
-- ARGV: 1 `token|`, 2 floor, 3 claim in ms
local held = redis.call('GET', KEYS[1])
if not held or string.find(held, ARGV[1], 1, true) ~= 1 then
  return 0 -- not held under this token: nothing was touched
end
-- The common case comes before any function is defined.
local head = redis.call('ZPOPMIN', KEYS[2])
if not head[1] then
  redis.call('DEL', KEYS[1], KEYS[4])
  return 1 -- released, nobody waits
end

