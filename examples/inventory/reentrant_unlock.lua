-- Undoes one entry of the owner. Deletes the lock if this entry was the owner's last. Returns 0 if the owner did not
-- hold the lock, and 1 otherwise. KEYS[1]: the key of the lock. ARGV[1]: the name of the owner.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0 -- the owner no longer holds the lock
end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then
  redis.call('DEL', KEYS[1])
end
return 1
