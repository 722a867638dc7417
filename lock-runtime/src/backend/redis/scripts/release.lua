-- Gives the lock to the next waiter, or frees it.
--
-- KEYS: grant, queue, fence
-- ARGV: 1 token, 2 floor, 3 claim in ms
local held = redis.call('GET', KEYS[1])
if not held or string.match(held, '^%d+') ~= ARGV[1] then
  return 0 -- not held under this token: nothing was touched
end
hand_on(KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[3])
return 1 -- released
