-- Takes the caller out of the queue, and out of the lock if it got that far and nobody shares it.
--
-- KEYS: grant, queue, fence
-- ARGV: 1 owner, 2 its member of the queue, 3 floor, 4 claim in ms, 5 'enter' or 'abandon'
if redis.call('ZREM', KEYS[2], ARGV[2]) == 1 then
  return { 'left' }
end
local held = redis.call('GET', KEYS[1])
if not held or not string.find(held, ARGV[1], 1, true) then
  return { 'left' } -- it was neither queued nor inside
end
if ARGV[5] == 'abandon' and not string.find(held, ' ', 1, true) then
  hand_on(redis.call('ZPOPMIN', KEYS[2]), KEYS[1], KEYS[2], KEYS[3], ARGV[3], ARGV[4])
  return { 'left' }
end
-- Granted meanwhile. A block is its process's: another member may be inside.
return { 'held', held, left_of(KEYS[1], held) }
