-- Extends the lease of a grant, and shortens it only where it begins anew.
--
-- KEYS: grant
-- ARGV: 1 token, 2 lease in ms (0: only look), 3 'anew' if the lease begins now
local held = redis.call('GET', KEYS[1])
local token, stored, rest = string.match(held or '', '^(%d+)|(%d+)(|[^|]+|.*)$')
if token ~= ARGV[1] then
  return -1 -- not held under this token, or not any more, and only kept
end
if ARGV[3] == 'anew' then
  redis.call('PEXPIRE', KEYS[1], ARGV[2]) -- first, for it is allowed when the server is out of memory
  redis.call('SET', KEYS[1], token .. '|' .. ARGV[2] .. rest, 'PX', ARGV[2])
  return tonumber(ARGV[2])
end
local lease, left = tonumber(ARGV[2]), redis.call('PTTL', KEYS[1])
local longest = tonumber(stored)
if left > longest or left < 0 then
  left = longest -- the server's clock was set back, or the expiry taken away: no grant lasts longer than its lease
  if lease > 0 then
    redis.call('PEXPIRE', KEYS[1], left)
  end
end
if lease <= left then
  return left -- in ms
end
if lease > longest then
  redis.call('PEXPIRE', KEYS[1], lease) -- first, for it is allowed when the server is out of memory
  redis.call('SET', KEYS[1], token .. '|' .. ARGV[2] .. rest, 'PX', lease)
else
  redis.call('PEXPIRE', KEYS[1], lease)
end
return lease -- in ms
