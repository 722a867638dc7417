-- Takes the lock if it is free and nobody waits, else queues the caller.
--
-- KEYS: grant, queue, fence
-- ARGV: 1 `lease|session_id|owner`, the part of the grant after its token
--       2 lease in ms
--       3 floor
--       4 wait in ms (0: do not queue)
--       5 claim in ms
--       6 not after (server time in µs, '' without limit)
--       7 `notify|session_id`, if the session is to be woken when a lock that is taken becomes free

if ARGV[6] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[6]) then
    return { 'late' } -- nothing was changed: the caller has given this request up
  end
end
-- The common case comes before any function is defined, because every instruction of it counts.
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and ARGV[2] + 0 > 0 then
  local token = redis.call('INCRBY', KEYS[3], 1)
  if token >= ARGV[3] + 0 then
    redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', ARGV[2])
    return token -- inside, for the whole lease
  end
end

