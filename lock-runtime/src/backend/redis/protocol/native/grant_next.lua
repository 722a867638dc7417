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
--   If readers hold the lock, the key is a sorted set of such grants instead, each behind its deadline (server time in ms):
--   `deadline|token|lease|…`. `lease` then ends with the letter `r`, and the score is the token. All owners of such a grant
--   are inside. A `?` after the deadline means that no owner has confirmed the grant yet. The key expires after the last
--   deadline. The permits of a semaphore are stored in the same way. `lease` then ends with `pK/N`: the owner takes K
--   permits, and enters if at most N are taken then. A member `=token` stands for each permit after the first, so that the
--   number of members is the number of permits.
-- - queue, a sorted set of the waiters: `owner|session_id|lease|wait|words`. The score, the owner's place, is the
--   server time in µs at which the owner was queued. No two owners have the same score. Another program, or another
--   version of this library, can leave entries that are not waiters, and scores that are not places. The scripts skip
--   such entries, and remove them from the front of the queue.
-- - claim, a string: the id of the session whose waiter was last granted the lock. The key expires 500 ms after the
--   time within which the waiter must confirm the grant.
-- - fence, a string: the newest token of all locks that share this key.
--
-- A semaphore has a fifth key, the limit, if an operator has set its number of permits: a string.

local MEMBER = '^(%x+)|([^|]+)|([1-9][%drp/]*)|(%d+)(.*)$' -- a lease of 0 would delete the key
local READER = '^(%d+)(%??)|(%d+|(%d+)[rp][%d/]*|([^|]*)|.*)$'
-- Stands for the present grant of a lock that readers hold, or of a semaphore (see `read`). No grant has this text.
local SHARED = 'shared'
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
-- The key of the limit, if the lock is a semaphore. A script for several locks sets this variable.
local limit_key = KEYS[5]
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

-- Returns the grant, false if the lock is free, or SHARED if readers hold it. Fails if another program has stored something
-- else.
local function read(grant)
  local held = redis.pcall('GET', grant)
  if type(held) == 'table' then
    local first = redis.call('ZRANGE', grant, 0, 0)[1]
    if first and not string.find(first, READER) then
      redis.call('GET', grant) -- fails: another program has stored this sorted set
    end
    return SHARED
  end
  return held
end

-- Defined below.
local offer, set_claimant_aside, grant_expired
local of_readers

-- Returns the functions for locks that readers hold, and for semaphores. They are defined when they are first needed, because
-- executing the definitions takes time.
local function readers()
  if of_readers then
    return of_readers
  end

  -- Returns whether a session listens, for a waiter that cannot enter now. The message `free` only shows this, and the session
  -- ignores it.
  local function listens(session_id, fence, grant)
    local channel = channel_of(session_id)
    if string.find(fence, '{', 1, true) then
      return is_reachable(channel, fence)
    end
    local heard = redis.pcall('PUBLISH', channel, 'free|' .. grant)
    return type(heard) ~= 'number' or heard > 0
  end

  -- Lets the key of a lock that readers hold expire after `left` ms at the earliest.
  local function keep_readers(grant, left)
    if redis.call('PTTL', grant) < left then
      redis.call('PEXPIRE', grant, left)
    end
  end

  -- Adds a grant of readers. `text` is the part of the grant after its token, and `left` is the time left in ms. `mark` is `?`
  -- if the grant is not confirmed yet. `now` is the server time in µs.
  local function add_reader(grant, token, text, left, mark, now)
    token = string.format('%.0f', token)
    local deadline = string.format('%.0f', math.floor(now / 1000) + left)
    redis.call('ZADD', grant, token, deadline .. mark .. '|' .. token .. '|' .. text)
    for i = 1, (string.match(text, '^%d+p(%d+)') or 1) - 1 do
      local more = string.format('%.0f', token + i)
      redis.call('ZADD', grant, more, '=' .. more)
    end
    -- A grant that is not confirmed in time has to be found, so that its process is set aside (see readers_left).
    keep_readers(grant, mark == '' and left or left + 500)
  end

  -- Removes a grant of readers or permits. `member` is its member of the sorted set.
  local function remove_reader(grant, member)
    redis.call('ZREM', grant, member)
    local token, permits = string.match(member, '^%d+%??|(%d+)|%d+p(%d+)')
    for i = 1, (permits or 1) - 1 do
      redis.call('ZREM', grant, string.format('=%.0f', token + i))
    end
  end

  -- Lets the key expire with its last grant, if few readers are left. The grant that was the last to end may have been removed.
  local function expire_readers(grant, now)
    local few, last = redis.call('ZRANGE', grant, 0, 64), 0
    if #few > 0 and #few <= 64 then
      for _, member in ipairs(few) do
        local deadline, mark = string.match(member, '^(%d+)(%??)')
        last = math.max(last, (deadline or 0) + (mark == '?' and 500 or 0))
      end
      redis.call('PEXPIRE', grant, string.format('%.0f', math.max(last - math.floor(now / 1000), 1)))
    end
  end

  -- Returns whether a caller with this lease can enter beside the present readers, or with its permits.
  local function fits(grant, lease)
    local taken, of = string.match(lease, 'p(%d+)/(%d+)$')
    if taken then
      of = tonumber(limit_key and redis.call('GET', limit_key) or of) or 0
      return redis.call('ZCARD', grant) + taken <= of
    end
    return string.sub(lease, -1) == 'r'
  end

  -- Caps the time left of the first grants of readers at their leases, because the clock was set back. `now` is in ms.
  local function cap_readers(grant, now)
    local longest = 0
    for _, member in ipairs(redis.call('ZRANGE', grant, 0, ENTRIES_AT_MOST / 2 - 1)) do
      local deadline, mark, text, lease = string.match(member, READER)
      if deadline and deadline - now > tonumber(lease) then
        redis.call('ZADD', grant, string.match(text, '^%d+'), string.format('%.0f', now + lease) .. mark .. '|' .. text)
        redis.call('ZREM', grant, member)
        longest = math.max(longest, tonumber(lease))
      end
    end
    keep_readers(grant, longest)
  end

  -- Removes the grants of readers whose deadline has passed, from the oldest on, until one has not passed. Returns the time
  -- left of this one in ms, or nil if no reader is left. The session of a grant that was not confirmed becomes the claim, so
  -- that the entries of its process are removed (see set_claimant_aside). With `all`, does the same for the permits of a
  -- semaphore that are not the oldest, because each of them counts.
  local function readers_left(grant, claimed, now, all)
    now = math.floor(now / 1000)
    local at, soonest = 0, nil
    while examined < ENTRIES_AT_MOST do
      local first = redis.call('ZRANGE', grant, at, at)[1]
      if not first then
        return soonest
      end
      local permits = string.match(first, '^%d+%??|%d+|%d+p(%d+)')
      local deadline, mark, text, lease, session_id = string.match(first, READER)
      if not deadline then
        redis.call('GET', grant) -- fails (see `read`)
      end
      local left = deadline - now
      if left > tonumber(lease) then
        cap_readers(grant, now)
        left = tonumber(lease)
      end
      if left > 0 and not (permits and all) then
        return left
      elseif left > 0 then
        at, soonest = at + permits, math.min(soonest or left, left)
      else
        remove_reader(grant, first)
      end
      if left <= 0 and mark ~= '' and session_id ~= '' and claimed then
        redis.call('SET', claimed, session_id, 'PX', 500)
      end
      examined = examined + 1
    end
    return soonest or 0
  end

  -- Returns the grants of readers by their owners, each with its time left in ms.
  local function readers_by_owner(grant, now)
    local found, at, some = {}, 0, nil
    repeat
      some = redis.call('ZRANGE', grant, at, at + 499)
      for _, member in ipairs(some) do
        local deadline, owners = string.match(member, '^(%d+)%??|%d+|[^|]*|[^|]+|([%x ]+)')
        local left = (tonumber(deadline) or 0) - math.floor(now / 1000)
        if left > 0 then
          for owner in string.gmatch(owners, '%x+') do
            found[owner] = { string.match(member, '|(.*)$'), left }
          end
        end
      end
      at = at + 500
    until #some < 500
    return found
  end

  -- Finds the grant of a reader. Returns the grant, the time left in ms, and the member of the sorted set. Only repeated
  -- requests and the requests of people look for a grant, because this takes longer the more readers there are.
  local function find_reader(grant, owner, now)
    local at, some = 0, nil
    repeat
      some = redis.call('ZRANGE', grant, at, at + 499)
      for _, member in ipairs(some) do
        if string.find(member, owner, 1, true) then
          local deadline, _, text = string.match(member, READER)
          local left = (tonumber(deadline) or 0) - math.floor(now / 1000)
          if left > 0 then
            return text, left, member
          end
        end
      end
      at = at + 500
    until #some < 500
  end

  -- Lets the readers at the front of the queue enter beside the readers that hold the lock, until a writer is at the front; or
  -- the callers of a semaphore, until the first of them needs more permits than there are.
  -- Removes the entries of waiters that are not alive or not listening. `silent` contains the sessions that are known not to
  -- listen. With `asks`, also finds out whether the waiter at the front listens that cannot enter.
  local function admit_readers(grant, queue, fence, floor, claim, aside, silent, asks)
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    while examined < ENTRIES_AT_MOST do
      local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
      if not head[1] then
        return
      end
      examined = examined + 1
      local owner, session_id, lease, wait, words = string.match(head[1], MEMBER)
      local is_alive = owner
        and #owner == OWNER_DIGITS
        and not silent[session_id]
        and not begins_with(session_id, aside)
        and head[2] + wait * 1000 > now
      local waits = is_alive and not fits(grant, lease)
      if waits and asks then
        waits = listens(session_id, fence, grant)
        is_alive = waits
      end
      if waits then
        return
      end
      redis.call('ZREM', queue, head[1])
      if is_alive then
        local owners, count = offer(owner, session_id, lease, wait, words, grant, queue, fence, floor, claim, time, now)
        if not owners then
          silent[session_id] = true
          examined = examined + count + ENTRIES_PER_OFFER
        end
      end
    end
  end

  -- Lets waiters enter a lock that readers hold, or have held until now: the readers at the front of the queue, or the next
  -- waiter if no reader is left. Returns the same values as grant_expired, and then the time left of one of the readers in ms.
  -- With `is_released`, a holder has just left, so that the permits of a semaphore need not be looked at for others to fit.
  local function grant_beside(grant, queue, claimed, fence, floor, claim, speaks, is_released)
    local time = redis.call('TIME')
    local left = readers_left(grant, claimed, time[1] * 1000000 + time[2], not is_released)
    if not left then
      return grant_expired(grant, queue, claimed, fence, floor, claim, speaks)
    end
    local aside, removed = set_claimant_aside(queue, claimed, speaks)
    admit_readers(grant, queue, fence, floor, claim, aside, {}, not is_released)
    return nil, examined >= ENTRIES_AT_MOST, removed, left
  end

  of_readers = {
    add = add_reader,
    remove = remove_reader,
    expire = expire_readers,
    fits = fits,
    listens = listens,
    left = readers_left,
    by_owner = readers_by_owner,
    find = find_reader,
    admit = admit_readers,
    beside = grant_beside,
  }
  return of_readers
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

-- Offers the lock to a waiter that is alive, and to its cohort. The first five arguments describe the waiter, whose entry the
-- calling function has removed from the queue. Returns the new owners, or nil and their number if their session does not
-- listen.
function offer(owner, session_id, lease, wait, words, grant, queue, fence, floor, claim, time, now)
  local channel = channel_of(session_id)
  if not is_reachable(channel, fence) then
    return nil, 0
  end
  local length, owners, count = tonumber(lease), owner, nil
  if not length then
    count = string.match(lease, 'p(%d+)') -- a call that takes permits shares its grant with nobody
  end
  if not count then
    owners, count = cohort(queue, owner, session_id, lease, wait, words, now)
  end
  local token = next_token(fence, floor, count)
  local given = string.format('%.0f|', token) .. lease .. '|'
  local text = session_id .. '|' .. owners .. words .. '|' .. time[1] .. '.' .. time[2]
  if length then
    redis.call('SET', grant, given .. text, 'PX', math.min(length, tonumber(claim)))
  else
    local left = math.min(tonumber(string.match(lease, '^%d+')), tonumber(claim))
    readers().add(grant, token, lease .. '|' .. text, left, '?', now)
  end
  -- An owner must be notified of its grant. If nobody receives the message, the next waiter gets the lock.
  local told = given .. owners .. '|' .. grant
  local signature = redis.sha1hex(session_id .. told .. session_id)
  local heard = redis.pcall('PUBLISH', channel, signature .. '|' .. told)
  if type(heard) == 'number' and heard > 0 then
    return owners, count
  end
  if not length then
    local score = string.format('%.0f', token)
    readers().remove(grant, redis.call('ZRANGE', grant, score, score, 'BYSCORE')[1])
  end
  return nil, count
end

-- Grants the lock to the first waiter that is alive and reachable, and to its cohort, and returns the new owners. If
-- there is no such waiter, deletes the grant and returns nil. The second result is true if the search stopped at
-- ENTRIES_AT_MOST and the queue still has entries. The search removes the queue entries of sessions that are not
-- listening. Once such a session is listening again, it notices that its entries are gone, and queues its callers
-- again. The calling script passes the result of its ZPOPMIN as `head`, so the script's first write is ZPOPMIN or DEL.
-- Redis allows both commands when it is out of memory, and then allows all further writes of the script. `claimed` is
-- the key of the claim, or nil if the calling script does not know it. If the first such waiter is a reader, all readers
-- behind it up to the next writer get the lock, too. `aside` names the sessions whose waiters are
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
      local length = tonumber(lease) -- nil for a reader
      if not length then
        redis.call('DEL', grant) -- the present grant is over, and the grants of readers are in a sorted set
      end
      local fits = length or readers().fits(grant, lease)
      if not fits and readers().listens(session_id, fence, grant) then
        -- An operator has set fewer permits than the waiter takes. It stays the first one, and keeps back the others.
        redis.call('ZADD', queue, head[2], head[1])
        if redis.call('PTTL', queue) < 2 * wait + 1000 then
          redis.call('PEXPIRE', queue, 2 * wait + 1000)
        end
        redis.call('DEL', grant, claimed or grant)
        return nil, false
      end
      local owners, count = nil, 0
      if fits then
        owners, count = offer(owner, session_id, lease, wait, words, grant, queue, fence, floor, claim, time, now)
      end
      if owners then
        if claimed and length and length >= MIN_CLAIMED_LEASE then
          redis.call('SET', claimed, session_id, 'PX', math.min(length, tonumber(claim)) + 500)
        elseif claimed then
          redis.call('DEL', claimed)
        end
        if not length then
          readers().admit(grant, queue, fence, floor, claim, aside, silent)
        end
        return owners
      end
      silent[session_id] = true
      examined = examined + count + ENTRIES_PER_OFFER
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
function set_claimant_aside(queue, claimed, speaks)
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
function grant_expired(grant, queue, claimed, fence, floor, claim, speaks)
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
  local unwanted = not (given or more) and redis.call('EXISTS', queue) == 0
  for _, session_id in ipairs(unwanted and removed or {}) do
    local heard = redis.pcall('PUBLISH', channel_of(session_id), 'free|' .. grant)
    unwanted = unwanted and (type(heard) ~= 'number' or heard == 0)
  end
  return unwanted
end
