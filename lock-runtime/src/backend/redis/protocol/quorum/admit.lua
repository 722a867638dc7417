-- Lets a node grant locks again, if enough time has passed since a client noticed that the node had lost its state.
--
-- KEYS: mark, fence
--
-- ARGV:
-- 1. the time at which a client noticed the loss of the node's state (server time in µs)
-- 2. the time that must have passed since the time in ARGV[1], in ms
-- 3. the longest lease in use, in ms
-- 4. the server's run ID
local now = server_micros()
if lost_since(KEYS[1], ARGV[4]) ~= ARGV[1] or now - tonumber(ARGV[1]) < ARGV[2] * 1000 then
  return 0 -- another client has admitted the node already, the node has lost its state again, or it is too early
end
redis.call('SET', KEYS[1], 'whole|' .. ARGV[1] .. '|' .. ARGV[3])
-- Raises the fence to the current time. With a lower fence, a client that knows a token from before the loss would
-- conclude that the node has lost its state again.
if tonumber(redis.call('GET', KEYS[2]) or 0) < now then
  redis.call('SET', KEYS[2], string.format('%.0f', now))
end
return 1 -- admitted
