-- The holder has left, and the lock stays taken for what is left of its least time. Then its expiry frees it, and the
-- next look of a waiter hands it on.
--
-- KEYS: grant
-- ARGV: 1 token, 2 how much longer, in ms
local held = redis.call('GET', KEYS[1])
local token, rest = string.match(held or '', '^(%d+)|%d+(|.*)$')
if token ~= ARGV[1] then
  return 0 -- not held under this token: nothing was touched
end
redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- first, for it is allowed when the server is out of memory
redis.call('SET', KEYS[1], token .. '|' .. ARGV[2] .. rest, 'PX', ARGV[2])
return 1 -- kept
