-- Returns whether the node has all of its state. If state is missing, marks the node as lost.
--
-- KEYS: mark, fence
--
-- ARGV:
-- 1. a lease in use, in ms
-- 2. the newest token that the fence has had, as far as the client knows
-- 3. the server's run ID
local fence = redis.call('GET', KEYS[2]) or '0'
if tonumber(fence) >= tonumber(ARGV[2]) then -- otherwise, the node has restarted with an older state
  local longest, since = whole(KEYS[1], ARGV[1])
  if longest then
    return { 'whole', since, fence, tonumber(longest) }
  end
end
-- A node whose mark says that it lost its state in this run has granted nothing since then, so the mark stays.
local now = server_micros()
local since = lost_since(KEYS[1], ARGV[3])
if not since then
  since = string.format('%.0f', now)
  redis.call('SET', KEYS[1], 'lost|' .. since .. '|' .. ARGV[3])
end
local age = math.max(math.floor((now - tonumber(since)) / 1000), 0) -- of the mark, in ms
return { 'lost', since, fence, age }
