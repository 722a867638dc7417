-- Frees the lock.
--
-- KEYS: lock
--
-- ARGV: `token|`, the token of the lock to release and a `|`
local field, _, token = ours(KEYS[1])
if not field or token .. '|' ~= ARGV[1] then
  return 0 -- the lock is not held with this token: nothing was changed
end
redis.call('DEL', KEYS[1])
tell(KEYS[1])
return 1 -- released
