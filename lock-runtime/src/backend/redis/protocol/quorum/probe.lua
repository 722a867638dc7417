-- Returns whether the node has all of its state. If state is missing, marks the node as lost.
--
-- KEYS: mark, fence
--
-- ARGV:
-- 1. a lease in use, in ms
-- 2. the newest token that the fence has had, as far as the client knows
-- 3. the server's run ID
-- 4. 'group' if this server is the primary of a group that Sentinels watch, otherwise ''
local fence = redis.call('GET', KEYS[2]) or '0'
if tonumber(fence) >= tonumber(ARGV[2]) then -- otherwise, the node has restarted with an older state
  local longest, since = whole(KEYS[1], ARGV[1], ARGV[4])
  if longest then
    return { 'whole', since, fence, tonumber(longest), 0 }
  end
end
-- A node whose mark says that it lost its state in this run has granted nothing since then, so the mark stays.
local group = ARGV[4] ~= ''
local run = group and replication_id() or ARGV[3]
local now = server_micros()
local since = lost_since(KEYS[1], run)
local before = redis.call('GET', KEYS[1]) or ''
-- The longest lease in the present mark. A promoted replica has copied this mark from its former primary.
local known = string.match(before, '^whole|%d+|(%d+)') or string.match(before, '^lost|%d+|%x*|(%d+)$') or '0'
if not since then
  since = string.format('%.0f', now)
  redis.call('SET', KEYS[1], 'lost|' .. since .. '|' .. run .. (group and '|' .. known or ''))
end
local age = math.max(math.floor((now - tonumber(since)) / 1000), 0) -- of the mark, in ms
return { 'lost', since, fence, age, group and tonumber(known) or 0 }
