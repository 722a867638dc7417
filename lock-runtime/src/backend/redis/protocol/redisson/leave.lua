-- Ends an acquisition. If the caller already holds the lock, releases the lock if ARGV[5] is 'abandon', and returns the
-- grant if ARGV[5] is 'enter'.
--
-- KEYS: lock
--
-- ARGV:
-- 1. owner
-- 2. `owner|session_id|lease|wait|words`
-- 3. unused
-- 4. unused
-- 5. 'enter' or 'abandon'
local field, holder, token = ours(KEYS[1])
if holder ~= uuid(ARGV[1]) then
  return { 'left' } -- the caller does not hold the lock
end
if ARGV[5] == 'abandon' then
  redis.call('DEL', KEYS[1])
  tell(KEYS[1])
  return { 'left' }
end
-- The caller was granted the lock before this script ran, so the script returns the grant.
local session_id, lease = string.match(ARGV[2], '^%x+|([^|]+)|(%d+)|')
return { 'held', token .. '|' .. lease .. '|' .. session_id .. '|' .. ARGV[1], clamp(KEYS[1], field) }
