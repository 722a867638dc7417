-- Extends the leases of grants, each by itself, and shortens one only where it restarts.
--
-- KEYS: locks
-- ARGV: 1 `restart|` if the leases begin now, and not after (server time in µs) if there is a limit, then for each lock its token, and its lease in ms (0: only look)
local function renew(lock, asked, lease, restart)
  local fine, field, _, token = pcall(ours, lock)
  if not fine then
    if string.find(type(field) == 'table' and field.err or field, 'WRONGTYPE', 1, true) then
      return -1 -- something else is there by now, which is nothing to the other locks
    end
    error(field, 0)
  end
  if token ~= asked then
    return -1 -- not held under this token, or not any more, and only kept
  end
  if restart then
    redis.call('PEXPIRE', lock, lease) -- first, for it is allowed when the server is out of memory
    redis.call('HSET', lock, field, lease)
    return lease
  end
  local left = clamp(lock, field)
  if lease <= left then
    return left
  end
  redis.call('PEXPIRE', lock, lease)
  if lease > tonumber(redis.call('HGET', lock, field)) then
    redis.call('HSET', lock, field, lease)
  end
  return lease
end

local restart, not_after = string.match(ARGV[1], '^(restart)|(%d*)$')
if restart and not_after ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(not_after) then
    restart = nil -- late: the leases stand as they are
  end
end
local left = {}
for i = 1, #KEYS do
  left[i] = renew(KEYS[i], ARGV[2 * i], tonumber(ARGV[2 * i + 1]), restart)
end
return left -- of each, in ms
