-- Takes the lock on this node if the lock is free on this node and the node has all of its state.
--
-- KEYS: grant, fence, mark
--
-- ARGV:
-- 1. `lease|session_id|owner|words|since`, the part of the grant after its token
-- 2. lease in ms
-- 3. token floor (see next_token.lua)
-- 4. time limit (server time in µs); after this limit, the script does nothing
local now = server_micros()
if now > tonumber(ARGV[4]) then
  return -1 -- late: nothing was changed, because the caller no longer waits for this request
end
if not whole(KEYS[3], ARGV[2]) then
  return -2 -- the node has lost its state
end
local held = redis.call('GET', KEYS[1])
if not held then
  local token = next_token(KEYS[2], ARGV[3], 1)
  redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', ARGV[2])
  return token
end
local token, lease, owner = string.match(held, '^(%d+)|(%d+)|[^|]*|(%x+)')
if owner == string.match(ARGV[1], '^%d+|[^|]*|(%x+)') then
  return tonumber(token) -- an earlier request was carried out, so the caller already holds the lock
end
-- Caps the time left of the grant at its lease. More time than the lease is left if the server's clock was set back, or
-- if the key's expiry was removed.
local left = redis.call('PTTL', KEYS[1])
if lease and (left > tonumber(lease) or left < 0) then
  redis.call('PEXPIRE', KEYS[1], lease)
end
return 0 -- another owner holds the lock on this node
