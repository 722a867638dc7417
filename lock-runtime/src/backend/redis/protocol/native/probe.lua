-- Sent by the heartbeat of a session with waiters. Grants each lock whose lease has ended to its next waiter. Returns
-- the grants of this session, because the messages about these grants may have been lost. Finds waiters whose queue
-- entries the server has lost.
--
-- KEYS: fence, then grant, queue, claim and limit of each lock; for a lock that is no semaphore, the grant instead of the limit
--
-- ARGV:
-- 1. session_id
-- 2. token floor (see next_token.lua)
-- 3. time within which a session must confirm a grant (a claim), in ms
-- 4. time until the next probe, in ms
-- 5. for each lock: the queue entry of one waiter of this session
local call, match = redis.call, string.match
local found = {}
for i = 2, #KEYS, 4 do
  local grant, queue, number = KEYS[i], KEYS[i + 1], (i + 2) / 4
  local member, more, left = ARGV[4 + number], false, nil
  local owner = string.sub(member, 1, OWNER_DIGITS)
  limit_key = KEYS[i + 3] ~= grant and KEYS[i + 3]
  local fine, held = pcall(read, grant)
  if not fine then
    if not string.find(type(held) == 'table' and held.err or held, 'WRONGTYPE', 1, true) then
      error(held, 0)
    end
    held = false -- another program has stored data of another type: the waiters queue again, and are refused
  end
  local is_queued = fine and call('ZSCORE', queue, member)
  -- If the server has lost the waiter's entry, this script does not grant the lock. The session's waiters first queue
  -- again with their old places, so that no later waiter is granted the lock before them.
  if is_queued and (not held or held == SHARED) then
    -- Grants the lock to the next waiter, which possibly belongs to this session.
    local admit = held and readers().beside or grant_expired
    local _
    _, more, _, left = admit(grant, queue, KEYS[i + 2], KEYS[1], ARGV[2], ARGV[3], ARGV[1])
    held, is_queued = read(grant), call('ZSCORE', queue, member)
  end
  if held == SHARED then
    local time, rest = call('TIME'), nil
    held = false
    if not is_queued then
      held, rest = readers().find(grant, owner, time[1] * 1000000 + time[2])
    end
    if held then
      found[#found + 1] = { 'held', number, held, rest }
    elseif left and left < ARGV[4] + 0 then
      found[#found + 1] = { 'ends', number, left }
    end
  elseif held then
    local lease, session_id = match(held, '^%d+|(%d+)|([^|]*)|')
    local rest = clamp(grant, lease)
    if session_id == ARGV[1] then
      found[#found + 1] = { 'held', number, held, rest }
    elseif rest >= 0 and rest < ARGV[4] + 0 then -- a text that another program has stored may never expire
      found[#found + 1] = { 'ends', number, rest }
    end
  elseif more then
    found[#found + 1] = { 'ends', number, 0 }
  end
  if not is_queued and not (held and string.find(held, owner, 1, true)) then
    found[#found + 1] = { 'gone', number } -- the waiter has neither a place nor a grant: the server has lost state
  end
end
-- Each entry contains the number of a lock. An entry `held` also contains a grant of this session, and its time left in
-- ms. An entry `ends` also contains the time in ms after which the session has to probe the lock again. An entry `gone`
-- means that the session's waiters for this lock have to queue again.
return found
