-- Writes the token that a quorum agreed on into a grant of this node, and into its fence, so that the node's next grant
-- has a higher one. The lease stays as it is.
--
-- KEYS: grant, fence
-- ARGV: 1 owner, 2 token
local held = redis.call('GET', KEYS[1])
local rest, owner = string.match(held or '', '^%d+(|%d+|[^|]*|(%x+))$')
if owner ~= ARGV[1] then
  return 0 -- not held by this owner, or no longer: nothing was touched
end
if tonumber(redis.call('GET', KEYS[2]) or 0) < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2])
end
redis.call('SET', KEYS[1], ARGV[2] .. rest, 'KEEPTTL')
return 1 -- raised
