-- Extends the leases of grants, each by itself, and shortens one only where it restarts.
--
-- KEYS: grants
-- ARGV: 1 `restart|` if the leases begin now, and not after (server time in µs) if there is a limit, then for each grant its token, and its lease in ms (0: only look)
local function renew(grant, asked, wanted, restart)
  local fine, held = pcall(redis.call, 'GET', grant)
  if not fine then
    if string.find(type(held) == 'table' and held.err or held, 'WRONGTYPE', 1, true) then
      return -1 -- something else is there by now, which is nothing to the other grants
    end
    error(held, 0)
  end
  local token, stored, rest = string.match(held or '', '^(%d+)|(%d+)(|[^|]+|.*)$')
  if token ~= asked then
    return -1 -- not held under this token, or not any more, and only kept
  end
  if restart then
    redis.call('PEXPIRE', grant, wanted) -- first, for it is allowed when the server is out of memory
    redis.call('SET', grant, token .. '|' .. wanted .. rest, 'PX', wanted)
    return tonumber(wanted)
  end
  local lease, left = tonumber(wanted), redis.call('PTTL', grant)
  local longest = tonumber(stored)
  if left > longest or left < 0 then
    left = longest -- the server's clock was set back, or the expiry taken away: no grant lasts longer than its lease
    if lease > 0 then
      redis.call('PEXPIRE', grant, left)
    end
  end
  if lease <= left then
    return left
  end
  redis.call('PEXPIRE', grant, lease) -- first, for it is allowed when the server is out of memory
  if lease > longest then
    redis.call('SET', grant, token .. '|' .. wanted .. rest, 'PX', lease)
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
  left[i] = renew(KEYS[i], ARGV[2 * i], ARGV[2 * i + 1], restart)
end
return left -- of each, in ms
