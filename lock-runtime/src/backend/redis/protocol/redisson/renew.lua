-- Extends the leases of several locks, each independently of the others. Only a restart (see ARGV) makes a lease
-- shorter.
--
-- KEYS: locks
--
-- ARGV:
-- 1. one of these texts:
--    - '': extends each lease of which less than the given length is left
--    - `touch`: like '', and also writes each other lock without a change, so that WAIT can wait for this write
--    - `restart|`, or `restart|` and a time limit (server time in µs): sets the time left of each lease to the given
--      length
-- 2. for each lock: its token, and then its lease in ms (0: only read the time left)
local function renew(lock, asked, lease, restart)
  local fine, field, _, token = pcall(ours, lock)
  if not fine then
    if string.find(type(field) == 'table' and field.err or field, 'WRONGTYPE', 1, true) then
      return -1 -- the key stores no lock any longer; the other locks still have to be renewed
    end
    error(field, 0)
  end
  if token ~= asked then
    return -1 -- the lock is not held with this token, or is only retained
  end
  if restart then
    redis.call('PEXPIRE', lock, lease) -- a server that is out of memory allows HSET only after PEXPIRE
    redis.call('HSET', lock, field, lease)
    return lease
  end
  local left = clamp(lock, field)
  if lease <= left then
    if ARGV[1] == 'touch' and left > 0 then
      redis.call('PEXPIRE', lock, left)
    end
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
    restart = nil -- late: leases are extended, but not shortened
  end
end
local left = {}
for i = 1, #KEYS do
  left[i] = renew(KEYS[i], ARGV[2 * i], tonumber(ARGV[2 * i + 1]), restart)
end
return left -- the time left of each lock's lease, in ms; -1 if the lock is not held with the token
