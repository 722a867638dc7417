-- A majority of the nodes has stored a grant, and this node lacks it. Stores the grant on this node, if the lock is
-- free on this node and the node has all of its state.
--
-- KEYS: grant, fence, mark
--
-- ARGV:
-- 1. token
-- 2. `lease|session_id|owner`
-- 3. lease in ms
-- 4. time limit (server time in µs)
local now = server_micros()
if now > tonumber(ARGV[4]) then
  return -1 -- late: nothing was changed
end
if not whole(KEYS[3], ARGV[3]) then
  return -2 -- the node has lost its state
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0 -- the node has this grant already, or another owner holds the lock on it
end
-- Raises the fence, so that the node's next grant has a higher token.
if tonumber(redis.call('GET', KEYS[2]) or 0) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[2], ARGV[1])
end
redis.call('SET', KEYS[1], ARGV[1] .. '|' .. ARGV[2], 'PX', ARGV[3])
return 1 -- joined
