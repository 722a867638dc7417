-- Shared by the scripts for locks in Redisson's layout.
--
-- "Our locks" are the locks that this library stores in Redisson's layout. "Redisson's own locks" are the locks that
-- the Java library Redisson stores.
--
-- The state of a lock consists of two keys in one hash slot:
--
-- - lock, a hash that expires with the lease: the field `<uuid>:<n>` stores a number. In Redisson's own locks, the
--   number is the owner's hold count. In our locks, the number is the lease in ms, or the time in ms for which the lock
--   is retained. Redisson's read/write locks have more fields, but this library never creates such locks.
-- - counter, a string: the newest token of Redisson's fenced lock of the same name, if that lock has ever been used.
--
-- The UUIDs in Redisson's own locks are random (version 4). The UUIDs in our locks have version 8, and are built from
-- the owner's 32 digits. In our locks, `n` is the fencing token, and re-entries are not stored on the server.

local function uuid(owner)
  return (string.gsub(owner, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)%x(%x%x%x)(%x%x%x%x)(%x+)$', '%1-%2-8%3-%4-%5'))
end

-- If the lock is one of ours, returns three values: its field, the owner's UUID, and the token. Returns nothing for one
-- of Redisson's own locks.
local function ours(lock)
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    local owner, token = string.match(field, '^(%x+%-%x+%-8%x+%-%x+%-%x+):(%d+)$')
    if owner then
      return field, owner, token
    end
  end
end

-- Returns the time left of one of our locks, in ms. Caps this time at the lease, because the server's clock may have
-- been set back, or the key's expiry may have been changed. This script cannot cap the time left of Redisson's own
-- locks, because it does not know their leases.
local function clamp(lock, field)
  local lease, left = tonumber(redis.call('HGET', lock, field)), redis.call('PTTL', lock)
  if left > lease or left < 0 then
    redis.call('PEXPIRE', lock, lease)
    return lease
  end
  return left
end

