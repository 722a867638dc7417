-- Takes the lock if it is free and nobody waits. Otherwise acquire.lua continues.
--
-- KEYS: grant, queue, fence
-- ARGV: 1 `lease|session_id|owner`, the part of the grant after its token
--       2 lease in ms
--       3 floor
--       4 wait in ms (0: do not queue)
--       5 claim in ms
--       6 time limit (server time in µs, '' if there is none); after it, the script does nothing
--       7 `notify|session_id`, given only if the session has to be woken later, in case the lock is taken now

if ARGV[6] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[6]) then
    return { 'late' } -- nothing was changed, because the caller no longer waits for this request
  end
end
-- The common case comes before all function definitions, because executing the definitions takes time.
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and ARGV[2] + 0 > 0 then
  local token = redis.call('INCRBY', KEYS[3], 1)
  if token >= ARGV[3] + 0 then
    redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', ARGV[2])
    return token -- the caller has the lock for the whole lease
  end
end

