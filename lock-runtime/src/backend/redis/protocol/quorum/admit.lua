-- Lets a node grant again, if it has been without its state for long enough.
--
-- KEYS: mark, fence
-- ARGV: 1 since when it is known to have lost its state, 2 how long ago that is at least, in ms, 3 the longest lease in
--       use, in ms
local now = server_micros()
if redis.call('GET', KEYS[1]) ~= 'lost|' .. ARGV[1] or now - tonumber(ARGV[1]) < ARGV[2] * 1000 then
  return 0 -- another client was faster, or the state was lost once more
end
redis.call('SET', KEYS[1], 'whole|' .. ARGV[1] .. '|' .. ARGV[3])
-- A client that knows an older token takes the node for one that has lost its state.
if tonumber(redis.call('GET', KEYS[2]) or 0) < now then
  redis.call('SET', KEYS[2], string.format('%.0f', now))
end
return 1 -- admitted
