-- Extends the leases of several grants, each independently of the others. Only a restart (see ARGV) makes a lease
-- shorter.
--
-- KEYS: grants
--
-- ARGV:
-- 1. one of these texts:
--    - '': extends each lease of which less than the given length is left
--    - `touch`: like '', and also writes each other grant without a change, so that WAIT can wait for this write
--    - `restart|`, or `restart|` and a time limit (server time in µs): sets the time left of each lease to the given
--      length
-- 2. for each grant: its token (on a node of a Redlock, `token owner`), and then its lease in ms (0: only read the time
--    left)

-- Extends the lease of a grant of readers (see grant_next.lua).
local function renew_reader(grant, asked, wanted, restart)
  local fine, found = pcall(redis.call, 'ZRANGE', grant, string.match(asked, '^%d+'), string.match(asked, '^%d+'), 'BYSCORE')
  local pattern = '^(%d+)%??|(%d+)|(%d+)([rp][%d/]*|[^|]+|.*)$'
  local deadline, token, stored, rest = string.match(fine and found[1] or '', pattern)
  if not deadline then
    return -1 -- the lock is not held with this token, or is only retained, or the key stores no grants any longer
  end
  restart = restart and not string.find(rest, ' ', 1, true) -- other owners of the grant rely on its lease
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local lease, longest = tonumber(wanted), tonumber(stored)
  local left = math.min(deadline - now, longest) -- more is left if the clock was set back
  if left <= 0 then
    return -1
  end
  if not restart and lease <= left then
    if ARGV[1] == 'touch' then
      redis.call('PEXPIRE', grant, math.max(redis.call('PTTL', grant), left))
    end
    return left
  end
  -- A server that is out of memory allows ZADD only after PEXPIRE.
  redis.call('PEXPIRE', grant, math.max(redis.call('PTTL', grant), lease))
  stored = (restart or lease > longest) and wanted or stored
  local renewed = string.format('%.0f', now + lease) .. '|' .. token .. '|' .. stored .. rest
  if renewed ~= found[1] then
    redis.call('ZADD', grant, token, renewed)
    redis.call('ZREM', grant, found[1]) -- the key would lose its expiry if its last member was removed first
  end
  return lease
end

local function renew(grant, asked, wanted, restart)
  local fine, held = pcall(redis.call, 'GET', grant)
  if not fine then
    if string.find(type(held) == 'table' and held.err or held, 'WRONGTYPE', 1, true) then
      return renew_reader(grant, asked, wanted, restart)
    end
    error(held, 0)
  end
  if not held then
    redis.call('DEL', grant) -- has no effect, but a replica refuses it: only a primary decides that a grant is gone
    return -1
  end
  local token, stored, rest = string.match(held, '^(%d+)|(%d+)(|[^|]+|.*)$')
  if token ~= asked and not (token and token .. ' ' .. string.match(rest, '^|[^|]+|(%x*)') == asked) then
    return -1 -- the lock is not held with this token, or is only retained
  end
  if restart then
    redis.call('PEXPIRE', grant, wanted) -- a server that is out of memory allows SET only after PEXPIRE
    redis.call('SET', grant, token .. '|' .. wanted .. rest, 'PX', wanted)
    return tonumber(wanted)
  end
  local lease, left = tonumber(wanted), redis.call('PTTL', grant)
  local longest = tonumber(stored)
  if left > longest or left < 0 then
    left = longest -- the clock was set back, or the expiry was removed, but no grant may outlast its lease
    if lease > 0 then
      redis.call('PEXPIRE', grant, left)
    end
  end
  if lease <= left then
    if ARGV[1] == 'touch' and left > 0 then
      redis.call('PEXPIRE', grant, left)
    end
    return left
  end
  redis.call('PEXPIRE', grant, lease) -- a server that is out of memory allows SET only after PEXPIRE
  if lease > longest then
    redis.call('SET', grant, token .. '|' .. wanted .. rest, 'PX', lease)
  end
  return lease
end

local restart, not_after = string.match(ARGV[1], '^(restart)|(%d*)$')
if restart and not_after ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(not_after) then
    restart = nil -- late: leases are extended, but not shortened
  end
end
local left = {}
for i = 1, #KEYS do
  left[i] = renew(KEYS[i], ARGV[2 * i], ARGV[2 * i + 1], restart)
end
return left -- the time left of each grant, in ms; -1 if the lock is not held with the token
