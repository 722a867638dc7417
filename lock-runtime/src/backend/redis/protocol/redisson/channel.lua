-- Returns the channel on which Redisson announces that a lock is free. The channel lies in the slot of the lock.
local function channel(lock)
  return 'redisson_lock__channel:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')
end
