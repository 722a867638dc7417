-- Extends the lease of a grant, and never shortens it.
--
-- KEYS: grant
-- ARGV: 1 token, 2 lease in ms (0: only look)
local held = redis.call('GET', KEYS[1])
local token, stored, rest = string.match(held or '', '^(%d+)|(%d+)(|.*)$')
if token ~= ARGV[1] then
  return -1 -- not held under this token
end
local lease, left = tonumber(ARGV[2]), redis.call('PTTL', KEYS[1])
if left > tonumber(stored) then
  left = tonumber(stored) -- the server's clock was set back: no grant lasts longer than its lease
  if lease > 0 then
    redis.call('PEXPIRE', KEYS[1], left)
  end
end
if lease <= left then
  return left -- in ms
end
if lease > tonumber(stored) then
  redis.call('SET', KEYS[1], token .. '|' .. ARGV[2] .. rest, 'PX', lease)
else
  redis.call('PEXPIRE', KEYS[1], lease)
end
return lease -- in ms
