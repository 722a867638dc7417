-- Extends the lease of each grant independently. Shortens a lease only if it restarts.
--
-- KEYS: locks
-- ARGV: 1 `restart|` if the leases restart now, followed by a limit (server time in µs) if there is one,
--       then for each lock its token, and its lease in ms (0: only read)
local function renew(lock, asked, lease, restart)
  local fine, field, _, token = pcall(ours, lock)
  if not fine then
    if string.find(type(field) == 'table' and field.err or field, 'WRONGTYPE', 1, true) then
      return -1 -- the key has other data now, which does not concern the other locks
    end
    error(field, 0)
  end
  if token ~= asked then
    return -1 -- not held under this token, or only retained
  end
  if restart then
    redis.call('PEXPIRE', lock, lease) -- first, because it is allowed when the server is out of memory
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
    restart = nil -- late: the leases stay as they are
  end
end
local left = {}
for i = 1, #KEYS do
  left[i] = renew(KEYS[i], ARGV[2 * i], tonumber(ARGV[2 * i + 1]), restart)
end
return left -- the time left of each, in ms
