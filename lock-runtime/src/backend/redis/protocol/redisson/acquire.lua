-- Takes the lock if it is free.
--
-- KEYS: lock, counter, fence
-- ARGV: 1 `lease|session_id|owner`, 2 lease in ms, 3 floor, 4 and 5 are for layouts with a queue,
--       6 not after (server time in µs, '' without limit)
if ARGV[6] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[6]) then
    return { 'late' } -- nothing was changed: the caller has given this request up
  end
end
local owner = string.match(ARGV[1], '(%x+)$')
if redis.call('EXISTS', KEYS[1]) == 0 then
  return take(KEYS[1], KEYS[2], KEYS[3], owner, ARGV[2], ARGV[3]) -- inside, for the whole lease
end
local field, holder, token = ours(KEYS[1])
local left = field and clamp(KEYS[1], field)
if holder == uuid(owner) then
  -- The caller holds the lock already: an earlier request was carried out. Returns that grant, and the time left of it.
  return { 'held', token .. '|' .. ARGV[1], left }
end
return { 'busy' }
