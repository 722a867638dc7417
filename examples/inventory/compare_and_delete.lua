-- The lock is deleted by its owner only. KEYS: the lock. ARGV: the owner.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
