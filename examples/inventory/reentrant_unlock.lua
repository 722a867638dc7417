-- Leaves the lock once. The last leave deletes it. KEYS: the lock. ARGV: the owner.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0 -- the owner has lost the lock meanwhile
end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then
  redis.call('DEL', KEYS[1])
end
return 1
