-- Shared by the scripts that use the mark of a node of a Redlock.
--
-- The mark of a node is a string that never expires. A node that loses its whole state loses the mark, too. The mark
-- has one of two values:
--
-- - `lost|<since>|<run>`: a client noticed at <since> (server time in µs) that the node had no mark, and its server had
--   the run ID <run>. The node grants nothing. If the run ID changes, the node may have lost its state again.
-- - `whole|<since>|<lease>`: the node grants locks again after the loss that a client noticed at <since> (server time
--   in µs), and has lost no state since then. <lease> is the longest lease, in ms, that a client has reported.

-- Raises the longest lease in the mark to `lease`, if `lease` is longer. Returns the longest lease, and the `<since>`
-- of the mark. Returns nil if the node is not marked as whole.
local function whole(mark, lease)
  local since, longest = string.match(redis.call('GET', mark) or '', '^whole|(%d+)|(%d+)$')
  if not longest then
    return nil
  end
  if tonumber(longest) < tonumber(lease) then
    redis.call('SET', mark, 'whole|' .. since .. '|' .. lease)
    longest = lease
  end
  return longest, since
end

-- Returns the time at which the loss of the node's state was first seen in this run of its server. Returns nil if the
-- node is not marked as lost in this run. If the client is not allowed to read the run ID, `run` is '', and a mark that
-- this client writes has '' as its run ID. A run ID of '' matches every run.
local function lost_since(mark, run)
  local since, marked = string.match(redis.call('GET', mark) or '', '^lost|(%d+)|([^|]*)$')
  if marked == run or marked == '' or run == '' then
    return since
  end
  return nil
end

local function server_micros()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

