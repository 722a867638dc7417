-- Takes the lock if it is free.
--
-- KEYS: lock, counter, fence
--
-- ARGV:
-- 1. `lease|session_id|owner|words|since`
-- 2. lease in ms
-- 3. token floor (see next_token.lua)
-- 4. unused (the native layout's script uses this argument)
-- 5. unused (the native layout's script uses this argument)
-- 6. time limit (server time in µs, '' if there is none)
if ARGV[6] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[6]) then
    return { 'late' } -- nothing was changed, because the caller no longer waits for this request
  end
end
local owner = string.match(ARGV[1], '^%d+|[^|]*|(%x+)')
if redis.call('EXISTS', KEYS[1]) == 0 then
  return take(KEYS[1], KEYS[2], KEYS[3], owner, ARGV[2], ARGV[3]) -- granted, with the whole lease left
end
local field, holder, token = ours(KEYS[1])
local left = field and clamp(KEYS[1], field)
if holder == uuid(owner) then
  -- An earlier request was carried out, so the caller already holds the lock. Returns the grant, and its time left in
  -- ms.
  return { 'held', token .. '|' .. ARGV[1], left }
end
return { 'busy' }
