-- Shared by the scripts for the nodes of a quorum.
--
-- Mark of a node, a string that never expires and is lost together with the rest of the state:
--   lost|<since>           the node was seen without a mark at this server time, in µs; it grants nothing
--   whole|<since>|<lease>  the node was readmitted after a loss that was seen at this time, and has all state
--                          since then. <lease> is the longest lease in use that the node was told of, in ms

-- Returns the longest lease in use, raised to `lease`, and since when the node is whole; nil if the node is not whole.
local function whole(mark, lease)
  local since, longest = string.match(redis.call('GET', mark) or '', '^whole|(%d+)|(%d+)$')
  if longest and tonumber(longest) < tonumber(lease) then
    redis.call('SET', mark, 'whole|' .. since .. '|' .. lease)
    longest = lease
  end
  return longest, since
end

-- Returns since when a node that is not whole is known to have lost its state.
local function lost(mark, now)
  local since = string.match(redis.call('GET', mark) or '', '^lost|(%d+)$')
  if not since then
    since = string.format('%.0f', now)
    redis.call('SET', mark, 'lost|' .. since)
  end
  return since
end

local function server_micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

