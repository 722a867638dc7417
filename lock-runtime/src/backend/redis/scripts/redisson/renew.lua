-- Extends the lease of a grant, and shortens it only where it begins anew.
--
-- KEYS: lock
-- ARGV: 1 token, 2 lease in ms (0: only look), 3 'anew' if the lease begins now
local _, _, token = ours(KEYS[1])
if token ~= ARGV[1] then
  return -1 -- not held under this token, or not any more, and only kept
end
local lease, left = tonumber(ARGV[2]), math.max(redis.call('PTTL', KEYS[1]), 0)
if ARGV[3] ~= 'anew' and lease <= left then
  return left -- in ms
end
redis.call('PEXPIRE', KEYS[1], lease)
return lease -- in ms
