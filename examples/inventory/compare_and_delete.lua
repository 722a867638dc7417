-- Deletes the lock if the caller owns it. Returns 1 if the lock was deleted, and 0 otherwise. KEYS[1]: the key of the
-- lock. ARGV[1]: the owner name of the caller.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
