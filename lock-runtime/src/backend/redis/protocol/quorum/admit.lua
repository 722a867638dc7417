-- Lets a node grant again, if it has been without its state for long enough.
--
-- KEYS: mark, fence
-- ARGV: 1 since when it is known to have lost its state, 2 how long ago at least that was, in ms, 3 the longest lease
--       in use, in ms
local now = server_micros()
if redis.call('GET', KEYS[1]) ~= 'lost|' .. ARGV[1] or now - tonumber(ARGV[1]) < ARGV[2] * 1000 then
  return 0 -- another client was faster, or the state was lost again
end
redis.call('SET', KEYS[1], 'whole|' .. ARGV[1] .. '|' .. ARGV[3])
-- Without this, a client that knows an older token would conclude that the node has lost its state.
if tonumber(redis.call('GET', KEYS[2]) or 0) < now then
  redis.call('SET', KEYS[2], string.format('%.0f', now))
end
return 1 -- admitted
