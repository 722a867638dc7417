-- Queues several callers of one session, in the order of the arguments. If the lock is free, grants it at once to the
-- first waiter that is alive and reachable.
--
-- KEYS: grant, queue, fence, claim
--
-- ARGV:
-- 1. session_id
-- 2. token floor (see next_token.lua)
-- 3. time within which a session must confirm a grant (a claim), in ms
-- 4. time limit (server time in µs, '' if there is none)
-- 5. for each caller: `owner|session_id|lease|wait|words`, and then its place (the score from an earlier reply), the
--    server time (µs) of its first request if the reply was lost, or '' if this is its first request
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[4] ~= '' and now > tonumber(ARGV[4]) then
  return { 'late' } -- nothing was changed, because the callers no longer wait for this request
end
local held = read(KEYS[1])
local by_owner -- the grants of readers
local grants, named = {}, {} -- the grants of the callers, each with its time left in ms
-- A new place is behind the places of all queued owners, even if the clock was set back.
local place = now
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
if last and tonumber(last) >= 2 ^ 53 then
  -- This score is not a place (see acquire_queue.lua).
  last = redis.call('ZRANGE', KEYS[2], '(9007199254740992', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
end
if last and tonumber(last) >= place then
  place = tonumber(last) + 1
end
-- `%d` is much faster than `%.0f`, but on a 32-bit server `%d` cannot print a number as large as a place.
local PLACE = string.format('%d', 2 ^ 53) == '9007199254740992' and '%d' or '%.0f'
local added, places, longest = {}, {}, 0
local terms, wait -- `|session_id|lease|wait|words` of the previous caller, which most callers share
for i = 5, #ARGV, 2 do
  local owner, its_terms = string.sub(ARGV[i], 1, OWNER_DIGITS), string.sub(ARGV[i], OWNER_DIGITS + 1)
  if its_terms ~= terms then
    local is_member, _, _, its_wait = string.match(ARGV[i], MEMBER)
    if not is_member then
      return redis.error_reply('BADLEASE a lease is a whole number of ms from 1') -- PEXPIRE with 0 would delete the key
    end
    terms, wait = its_terms, tonumber(its_wait)
    longest = math.max(longest, wait)
  end
  local own
  if held == SHARED and ARGV[i + 1] ~= '' then
    by_owner = by_owner or readers().by_owner(KEYS[1], now)
    own = by_owner[owner]
    if own and not named[own[1]] then
      named[own[1]] = true
      grants[#grants + 1] = own
    end
  end
  if own or held and string.find(held, owner, 1, true) then
    -- An earlier request was carried out, so this owner has already been granted the lock.
    local first = before_all(KEYS[2], now) - (#ARGV - i)
    places[#places + 1] = string.format('%.0f', math.min(first, tonumber(ARGV[i + 1]) or now))
  else
    local score = ARGV[i + 1]
    -- A place is the time at which the caller's wait began. If the clock has been set forward, the wait may seem to be
    -- over, although the caller is still waiting. The caller then gets a new place.
    if score == '' or score + wait * 1000 <= now then
      score = string.format(PLACE, place)
      place = place + 1
    end
    added[#added + 1] = score
    added[#added + 1] = ARGV[i]
    places[#places + 1] = score
  end
end
if added[1] then
  if redis.call('ZADD', KEYS[2], 'NX', unpack(added)) < #added / 2 then
    -- An earlier request has already queued some of the callers. These callers keep their places.
    for i = 1, #places do
      places[i] = redis.call('ZSCORE', KEYS[2], ARGV[3 + 2 * i]) or places[i]
    end
  end
  -- The queue must not expire before its last waiter gives up.
  if redis.call('PTTL', KEYS[2]) < 2 * longest + 1000 then
    redis.call('PEXPIRE', KEYS[2], 2 * longest + 1000)
  end
end
if held == SHARED then
  readers().beside(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3], ARGV[1])
  held = read(KEYS[1])
elseif not held then
  grant_expired(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3], ARGV[1])
  held = read(KEYS[1])
end
local left = 0
if held == SHARED then
  left = redis.call('PTTL', KEYS[1])
elseif held then
  left = left_of(KEYS[1], held)
  if string.match(held, '^%d+|%d+|([^|]+)|') == ARGV[1] then
    grants[1] = { held, left }
  end
end
-- Returns, in this order: the grants of this session, each with its time left in ms (false if there is none), the time left of
-- the lock in ms (0 if it is free), and the place of each caller. The grants and their times left are returned because an
-- idle session cannot tell when the message about a grant was sent, and thus how long the grant lasts.
return { grants[1] and grants or false, left, unpack(places) }
