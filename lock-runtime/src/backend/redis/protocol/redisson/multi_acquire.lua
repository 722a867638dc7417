-- Takes several locks if each of them is free, or held by the caller already. Otherwise takes none.
--
-- KEYS: fence, then lock and counter of each lock
--
-- ARGV:
-- 1. lease in ms
-- 2. token floor (see next_token.lua)
-- 3. unused
-- 4. time limit (server time in µs, '' if there is none)
-- 5. for each lock: `lease|session_id|owner|words|since`
if ARGV[4] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[4]) then
    return 0 -- late: nothing was changed, because the caller no longer waits for this request
  end
end
local owners, granted = {}, {}
for i = 2, #KEYS, 2 do
  redis.call('GET', KEYS[i + 1]) -- reports a key of the wrong type before anything is written
  owners[i] = string.match(ARGV[4 + i / 2], '^%d+|[^|]*|(%x+)')
  if redis.call('EXISTS', KEYS[i]) == 1 then
    local field, holder, token = ours(KEYS[i])
    local left = field and clamp(KEYS[i], field)
    if holder ~= uuid(owners[i]) then
      return i / 2 -- the number of the first lock that is not free
    end
    granted[i / 2] = { token, left } -- an earlier request took this lock for the caller
  end
end
for i = 2, #KEYS, 2 do
  if not granted[i / 2] then
    local token = take(KEYS[i], KEYS[i + 1], KEYS[1], owners[i], ARGV[1], ARGV[2])
    granted[i / 2] = { string.format('%.0f', token), tonumber(ARGV[1]) }
  end
end
return granted -- the caller holds all locks. Each entry is a token, and the time left of the grant in ms
