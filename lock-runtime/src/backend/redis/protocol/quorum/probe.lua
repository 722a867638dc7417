-- Returns whether the node has all of its state. Marks the node as lost if it does not.
--
-- KEYS: mark, fence
-- ARGV: 1 a lease in use, in ms, 2 the newest token that the fence is known to have had
local fence = redis.call('GET', KEYS[2]) or '0'
if tonumber(fence) < tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[1]) -- the node has restarted with an older state
end
local longest, since = whole(KEYS[1], ARGV[1])
if longest then
  return { 'whole', since, fence, tonumber(longest) }
end
local now = server_micros()
since = lost(KEYS[1], now)
return { 'lost', since, fence, math.max(math.floor((now - tonumber(since)) / 1000), 0) } -- the age of the mark in ms
