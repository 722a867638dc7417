-- Gives the lock to the next waiter, or frees it.
--
-- KEYS: grant, queue, fence
-- ARGV: 1 `token|`, 2 floor, 3 claim in ms
local held = redis.call('GET', KEYS[1])
if not held or string.find(held, ARGV[1], 1, true) ~= 1 then
  return 0 -- not held under this token: nothing was touched
end
-- The common case, before anything else is even defined.
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 1 -- released, nobody waits
end

