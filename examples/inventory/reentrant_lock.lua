-- Acquires the lock for the owner. If the owner already holds the lock, counts one more entry. Returns 1 if the owner
-- holds the lock now, and 0 otherwise. KEYS[1]: the key of the lock. ARGV[1]: the name of the owner. ARGV[2]: the lease
-- in ms.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0 -- another owner holds the lock
end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
