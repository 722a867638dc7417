-- Enters the lock, or enters it once more if the owner already holds it. Returns 1 if the owner holds the lock now, and
-- 0 otherwise. KEYS: the key of the lock. ARGV: the name of the owner, the lease in ms.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0 -- another owner holds the lock
end
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
