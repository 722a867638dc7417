-- Reads or sets the number of permits that an operator has set for a semaphore, and lets the callers enter that fit now.
--
-- KEYS: grant, queue, fence, claim, limit
--
-- ARGV:
-- 1. 'set', or '' to read only
-- 2. the number; '' if each caller's own number counts
-- 3. token floor (see next_token.lua)
-- 4. time within which a session must confirm a grant (a claim), in ms
-- 5. 'set': time limit (server time in µs); after this limit, the script changes nothing
if ARGV[1] == 'set' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[5]) then
    return 'late'
  end
  if ARGV[2] == '' then
    redis.call('DEL', KEYS[5])
  else
    redis.call('SET', KEYS[5], ARGV[2])
  end
  local held = read(KEYS[1])
  if held == SHARED then
    readers().beside(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[4], '', true)
  elseif not held then
    grant_expired(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[4], '')
  end
end
return redis.call('GET', KEYS[5])
