-- Extends the leases of grants, each by itself, and shortens one only where it begins anew.
--
-- KEYS: locks
-- ARGV: 1 'anew' if the leases begin now, then for each lock its token, and its lease in ms (0: only look)
local function renew(lock, asked, lease, anew)
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
  local left = math.max(redis.call('PTTL', lock), 0)
  if not anew and lease <= left then
    return left
  end
  redis.call('PEXPIRE', lock, lease)
  return lease
end

local left = {}
for i = 1, #KEYS do
  left[i] = renew(KEYS[i], ARGV[2 * i], tonumber(ARGV[2 * i + 1]), ARGV[1] == 'anew')
end
return left -- of each, in ms
