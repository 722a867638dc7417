-- Writes the token on which the nodes of a Redlock agreed into the grant on this node. Also raises the node's fence to
-- that token, so that the node's next grant has a higher token. Does not change the lease.
--
-- KEYS: grant, fence
--
-- ARGV: the owner, and the token on which the nodes agreed
local held = redis.call('GET', KEYS[1])
local rest, owner = string.match(held or '', '^%d+(|%d+|[^|]*|(%x+).*)$')
if owner ~= ARGV[1] then
  return 0 -- this owner does not hold the lock on this node: nothing was changed
end
if tonumber(redis.call('GET', KEYS[2]) or 0) < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2])
end
redis.call('SET', KEYS[1], ARGV[2] .. rest, 'KEEPTTL')
return 1 -- raised
