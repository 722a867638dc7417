-- Shared by the scripts for locks in Redisson's layout.
--
-- State of a lock, all in one slot:
--   lock     hash    <uuid>:<n> → a number                              expires with the lease
--                    In a lock of Redisson's, the number says how often its owner has entered.
--                    In a lock of ours, the number is the longest lease that its owner has asked for, in ms.
--                    Redisson's read/write locks have more fields, and are never ours.
--   counter  string  the newest token of Redisson's fenced lock of the same name, if that lock has ever been used
--
-- Redisson's UUIDs are random, of version 4. Ours are of version 8 and made from the owner's 32 digits, and `n` is the
-- fencing token. Re-entries into our locks are not stored on the server.

local function uuid(owner)
  return (string.gsub(owner, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)%x(%x%x%x)(%x%x%x%x)(%x+)$', '%1-%2-8%3-%4-%5'))
end

-- Returns the field, the owner's UUID and the token of a lock of ours. Returns nothing for a lock of Redisson's.
local function ours(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    local owner, token = string.match(field, '^(%x+%-%x+%-8%x+%-%x+%-%x+):(%d+)$')
    if owner then
      return field, owner, token
    end
  end
end

-- Returns the time left of a lock of ours, in ms, capped at its lease: the server's clock may have been set back, or
-- the expiry changed. A lock of Redisson's cannot be capped, because only its owner knows its lease.
local function clamp(lock, field)
  local lease, left = tonumber(redis.call('HGET', lock, field)), redis.call('PTTL', lock)
  if left > lease or left < 0 then
    redis.call('PEXPIRE', lock, lease)
    return lease
  end
  return left
end

-- Announces to all waiters that the lock is free.
local function tell(counter)
  redis.pcall('PUBLISH', 'redisson_lock__channel' .. string.sub(counter, #'redisson_lock_token' + 1), '0')
end

