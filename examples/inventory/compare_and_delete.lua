-- Deletes the lock if the caller owns it. Returns 1 if the lock was deleted, and 0 otherwise. KEYS: the key of the
-- lock. ARGV: the owner name of the caller.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
