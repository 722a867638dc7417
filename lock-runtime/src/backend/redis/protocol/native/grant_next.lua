-- Documents the stored state of a lock (grant, queue, claim, fence), and grants the lock to the next waiter that is
-- alive and reachable. A waiter is alive until its wait ends, and reachable while its session is listening. Shared by
-- the scripts that grant locks.
--
-- A lock has four keys, all in one hash slot.
--
-- - grant, a string: `token|lease|session_id|owner owner …|words|since`. The key expires with the lease. Several owners
--   are a cohort: neighbours in the queue with the same session and the same lease, which hold the lock one after
--   another. The first owner has the stored token, and the others have the tokens that follow. `words` tell people
--   where the first owner runs, and `since` tells them the time of the grant (see words.rs).
-- - queue, a sorted set of the waiters: `owner|session_id|lease|wait|words`. The score, the owner's place, is the
--   server time in µs at which the owner was queued. No two owners have the same score. Another program, or another
--   version of this library, can leave entries that are not waiters, and scores that are not places. The scripts skip
--   such entries, and remove them from the front of the queue.
-- - claim, a string: the id of the session whose waiter was last granted the lock. The key expires 500 ms after the
--   time within which the waiter must confirm the grant.
-- - fence, a string: the newest token of all locks that share this key.

local MEMBER = '^(%x+)|([^|]+)|([1-9]%d*)|(%d+)(.*)$' -- a lease of 0 would delete the key
local COHORT_AT_MOST = 64
local OWNER_DIGITS = 32
-- The number of digits that the ids of all sessions of one process have in common.
local PROCESS_DIGITS = 16
-- The shortest lease, in ms, for which a claim is stored. Until a member has taken its turn, its process renews the
-- grant only at its heartbeats, so a shorter lease can expire although the process is listening.
local MIN_CLAIMED_LEASE = 500
-- The number of queue entries that one script examines before it stops. The limit is needed because the server runs no
-- other command while a script runs.
local ENTRIES_AT_MOST = 2000
-- A grant whose message nobody receives takes the server as long as the examination of this many queue entries.
local ENTRIES_PER_OFFER = 5
-- The number of queue entries that this script has examined so far, in the queues of all its locks.
local examined = 0

-- Returns the notification channel of a session. The channel's name contains only a hash of the session id, because the
-- id signs the messages on the channel and must stay secret.
local function channel_of(session_id)
  return 'lock:session:' .. redis.sha1hex(session_id)
end

local function begins_with(text, start)
  return start and string.sub(text, 1, #start) == start
end

-- Returns whether the script can grant a lock to a session. In a Redis Cluster, PUBLISH also reaches a session that
-- listens at another server, but the result of PUBLISH does not count that session. The script would then grant the
-- lock to the next waiter as well. In a cluster, a script therefore grants a lock only to a session that listens at
-- this server.
local function is_reachable(channel, fence)
  local is_cluster = string.find(fence, '{', 1, true)
  return not is_cluster or tonumber(redis.call('PUBSUB', 'NUMSUB', channel)[2]) > 0
end

-- Caps the time left of a grant at its lease, and returns the time left, in ms. More time than the lease is left if the
-- server's clock was set back, or if the key's expiry was removed. The scripts of waiting callers call this function,
-- because a crashed holder does not correct its expiry itself.
local function clamp(grant, lease)
  local left = redis.call('PTTL', grant)
  lease = tonumber(lease)
  if lease and (left > lease or left < 0) then
    redis.call('PEXPIRE', grant, lease)
    return lease
  end
  return left
end

-- Returns the time left of a grant, in ms, but at most its lease. Does not change the grant. Another program may have
-- stored a text that has no lease.
local function left_of(grant, held)
  local lease = tonumber(string.match(held, '^%d+|(%d+)') or math.huge)
  return math.max(math.min(redis.call('PTTL', grant), lease), 0)
end

-- Returns a place before the places of all waiters. The script reports this place for an owner that already holds the
-- lock, because such an owner is no longer in the queue. Scores in the first second of 1970 are not places.
local function before_all(queue, now)
  local head = redis.call('ZRANGE', queue, 1000000, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
  return math.min(tonumber(head or now), now) - 1
end

-- Forms a cohort. `owner`, `session_id`, `lease`, `wait` and `words` describe the first waiter, which the calling
-- function has already removed from the queue. Removes up to COHORT_AT_MOST - 1 further entries from the front of the
-- queue, as long as they have the same session and the same lease. Returns the owners of the cohort, and their number.
-- The owners are `owner`, and the owners of the removed entries whose wait has not ended.
local function cohort(queue, owner, session_id, lease, wait, words, now)
  local tail = '|' .. session_id .. '|' .. lease .. '|'
  local first, last = #owner + 1, #owner + #tail
  local neighbours = redis.call('ZRANGE', queue, 0, 0) -- reads only one entry, which usually belongs to another process
  if not neighbours[1] or string.sub(neighbours[1], first, last) ~= tail then
    return owner, 1
  end
  neighbours = redis.call('ZRANGE', queue, 0, COHORT_AT_MOST - 2)
  local owners, taken, terms = { owner }, 0, tail .. wait .. words
  for _, member in ipairs(neighbours) do
    -- An entry with the same wait and words as the first waiter is alive: it was queued later, so its wait ends later,
    -- too.
    local is_alive = string.sub(member, first) == terms
    if not is_alive then
      if string.sub(member, first, last) ~= tail then
        break
      end
      is_alive = redis.call('ZSCORE', queue, member) + (string.match(member, '^%d+', last + 1) or 0) * 1000 > now
    end
    taken = taken + 1
    if is_alive then
      owners[#owners + 1] = string.sub(member, 1, #owner)
    end
  end
  redis.call('ZREMRANGEBYRANK', queue, 0, taken - 1)
  return table.concat(owners, ' '), #owners
end

-- Grants the lock to the first waiter that is alive and reachable, and to its cohort, and returns the new owners. If
-- there is no such waiter, deletes the grant and returns nil. The second result is true if the search stopped at
-- ENTRIES_AT_MOST and the queue still has entries. The search removes the queue entries of sessions that are not
-- listening. Once such a session is listening again, it notices that its entries are gone, and queues its callers
-- again. The calling script passes the result of its ZPOPMIN as `head`, so the script's first write is ZPOPMIN or DEL.
-- Redis allows both commands when it is out of memory, and then allows all further writes of the script. `claimed` is
-- the key of the claim, or nil if the calling script does not know it. `aside` names the sessions whose waiters are
-- skipped (the first result of set_claimant_aside), or is nil.
local function grant_next(head, grant, queue, claimed, fence, floor, claim, aside)
  local time, now
  local silent = {}
  while head[1] do
    if not now then
      time = redis.call('TIME')
      now = time[1] * 1000000 + time[2]
    end
    examined = examined + 1
    local owner, session_id, lease, wait, words = string.match(head[1], MEMBER)
    local is_waiter = owner and #owner == OWNER_DIGITS
    if is_waiter and not silent[session_id] and not begins_with(session_id, aside) and head[2] + wait * 1000 > now then
      local channel = channel_of(session_id)
      if is_reachable(channel, fence) then
        local owners, count = cohort(queue, owner, session_id, lease, wait, words, now)
        local token = next_token(fence, floor, count)
        local given = string.format('%.0f|', token) .. lease .. '|'
        local stored = given .. session_id .. '|' .. owners .. words .. '|' .. time[1] .. '.' .. time[2]
        redis.call('SET', grant, stored, 'PX', math.min(tonumber(lease), tonumber(claim)))
        -- An owner must be notified of its grant. If nobody receives the message, the next waiter gets the lock.
        local told = given .. owners .. '|' .. grant
        local signature = redis.sha1hex(session_id .. told .. session_id)
        local heard = redis.pcall('PUBLISH', channel, signature .. '|' .. told)
        if type(heard) == 'number' and heard > 0 then
          if claimed and tonumber(lease) >= MIN_CLAIMED_LEASE then
            redis.call('SET', claimed, session_id, 'PX', math.min(tonumber(lease), tonumber(claim)) + 500)
          elseif claimed then
            redis.call('DEL', claimed)
          end
          return owners
        end
        examined = examined + count
      end
      silent[session_id] = true
      examined = examined + ENTRIES_PER_OFFER
    end
    if examined >= ENTRIES_AT_MOST then
      redis.call('DEL', grant, claimed or grant)
      local more = redis.call('EXISTS', queue) == 1
      if more and aside then
        redis.call('SET', claimed, aside, 'PX', claim) -- the next script skips these sessions, too
      end
      return nil, more
    end
    head = redis.call('ZPOPMIN', queue)
  end
  redis.call('DEL', grant, claimed or grant)
  return nil, false
end

-- Removes the queue entries of the process whose session is in the claim. That session was granted the lock, and did not
-- confirm the grant in time, so it is not listening. Because all entries of its process are removed, a stopped process
-- delays the other processes by only one claim, however many of its callers wait, and with however many clients. `speaks`
-- is the id of the session that runs this script. The entries of a session that speaks stay. If another session of its
-- process is in the claim, the process is not stopped, so only the entries of that other session are removed. Returns the
-- first digits of the ids of the sessions whose entries are removed, and the ids of those sessions that had entries.
-- Returns nil if no entries have to be removed.
local function set_claimant_aside(queue, claimed, speaks)
  local aside = redis.call('GET', claimed)
  if not aside then
    return nil
  end
  redis.call('DEL', claimed)
  if begins_with(speaks, aside) then
    return nil
  end
  local process = string.sub(aside, 1, PROCESS_DIGITS)
  if not begins_with(speaks, process) then
    aside = process
  end
  local first, last = OWNER_DIGITS + 2, OWNER_DIGITS + 1 + #aside
  local members, places = redis.call('ZRANGE', queue, 0, ENTRIES_AT_MOST - 1), {}
  local sessions, known = {}, {}
  for _, member in ipairs(members) do
    if string.sub(member, first, last) == aside then
      places[#places + 1] = member
      local session_id = string.match(member, '^[^|]*', first)
      if not known[session_id] then
        known[session_id] = true
        sessions[#sessions + 1] = session_id
      end
    end
  end
  if places[1] then
    redis.call('ZREM', queue, unpack(places))
  end
  examined = examined + #members
  return aside, sessions
end

-- Grants the lock to the next waiter after the grant has expired, or was deleted without a release. First removes the
-- queue entries of the process that did not confirm its grant in time, if there is such a process. Returns the same values
-- as grant_next, and then the second result of set_claimant_aside. If the script has already examined ENTRIES_AT_MOST
-- entries for other locks, only returns nil and true.
local function grant_expired(grant, queue, claimed, fence, floor, claim, speaks)
  if examined >= ENTRIES_AT_MOST then
    return nil, true
  end
  local aside, removed = set_claimant_aside(queue, claimed, speaks)
  local given, more = grant_next(redis.call('ZPOPMIN', queue), grant, queue, claimed, fence, floor, claim, aside)
  return given, more, removed
end

-- Grants a free lock to its first waiter, for a caller that does not wait. Returns whether the caller can take the lock
-- itself, because nobody else wants it. If the script has removed the waiters of a session that is listening, the caller
-- must not take the lock: the session queues its callers again at its next probe. The message `free` only shows whether
-- the session is listening, and the session ignores it.
local function is_unwanted(grant, queue, claimed, fence, floor, claim, speaks)
  local given, more, removed = grant_expired(grant, queue, claimed, fence, floor, claim, speaks)
  local unwanted = not (given or more)
  for _, session_id in ipairs(unwanted and removed or {}) do
    local heard = redis.pcall('PUBLISH', channel_of(session_id), 'free|' .. grant)
    unwanted = unwanted and (type(heard) ~= 'number' or heard == 0)
  end
  return unwanted
end
