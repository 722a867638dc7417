-- Shared by the scripts for locks in Redisson's layout.
--
-- State of a lock, all in one slot:
--   lock     hash    <uuid>:<n> → a number                              expires with the lease
--                    in a lock of Redisson's: how often its owner has entered
--                    in a lock of ours: the longest lease that its owner has asked for, in ms
--                    Redisson's read/write locks have more fields, and are never ours
--   counter  string  the newest token of Redisson's fenced lock of that name, if it has ever been used
--
-- Redisson draws UUIDs of version 4. Ours are of version 8, made from the owner's 32 digits, and their n is the fencing
-- token. Re-entry is not stored.

local function uuid(owner)
  return (string.gsub(owner, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)%x(%x%x%x)(%x%x%x%x)(%x+)$', '%1-%2-8%3-%4-%5'))
end

-- Returns the field, the owner's UUID and the token of a lock that one of our owners holds.
local function ours(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    local owner, token = string.match(field, '^(%x+%-%x+%-8%x+%-%x+%-%x+):(%d+)$')
    if owner then
      return field, owner, token
    end
  end
end

-- Returns the time left of a lock of ours, in ms, capped at its lease: the server's clock may have been set back, or
-- the expiry changed. Only the owner of a Redisson lock knows its lease.
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

