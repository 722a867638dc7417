-- First part of an acquisition. Takes the lock if it is free and nobody waits. Otherwise acquire_queue.lua continues.
-- Uses next_token.lua.
--
-- KEYS: grant, queue, fence, and the claim if the caller is not queued (grant_next.lua describes the keys)
--
-- ARGV:
-- 1. `lease|session_id|owner|words|since`, the part of the grant after its token
-- 2. lease in ms
-- 3. token floor (see next_token.lua)
-- 4. the caller's wait in ms (0: the caller is not queued)
-- 5. time within which a session must confirm a grant (a claim), in ms
-- 6. time limit (server time in µs, '' if there is none); after this limit, the script does nothing
-- 7. the place (µs) at which to queue the caller, or the server time (µs) of its first request if the answer was lost;
--    given only for a caller that has asked before

if ARGV[6] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[6]) then
    return { 'late' } -- nothing was changed, because the caller no longer waits for this request
  end
end
-- The most frequent case comes before the function definitions of the next parts, because executing those definitions
-- takes time.
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and ARGV[2] + 0 > 0 then
  local token = next_token(KEYS[3], ARGV[3], 1)
  redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', ARGV[2])
  return token -- granted, with the whole lease left
end

