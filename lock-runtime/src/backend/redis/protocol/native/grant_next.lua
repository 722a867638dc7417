-- The stored state of a lock (grant, queue, claim, fence), and how a script grants the lock to the next waiter that is
-- alive and reachable. Shared by the scripts that grant locks.
--
-- State of a lock, all in one slot:
--   grant  string  token|lease|session_id|owner owner …   expires with the lease. Several owners are a cohort:
--                 neighbours in the queue, of one session and one lease, that have their turns one after the other. The
--                 token is the first owner's; the others have the tokens that follow.
--   queue  zset    owner|session_id|lease|wait            score: microseconds at which it was queued, never repeated
--                 notify|session_id                      score: infinite, behind all owners. The session is woken when
--                 the lock is free and no owner is queued
--   claim  string  session_id                             the session granted the lock last; outlives the claim itself
--   fence  string  the newest token of the slot

local MEMBER = '^(%x+)|([^|]+)|(%d+)|(%d+)$'
local COHORT_AT_MOST = 64
local OWNER_DIGITS = 32
-- A listening process may let a lease shorter than this expire, because it renews offers only at its heartbeat.
local TELLING_LEASE = 500
-- The number of queue entries that one script looks at, at most: the server answers nobody else meanwhile.
local ENTRIES_AT_MOST = 2000

-- Returns the channel of a session. The name does not reveal the id, which signs the messages there.
local function channel_of(session_id)
  return 'lock:session:' .. redis.sha1hex(session_id)
end

-- Caps what is left of a grant at its lease: the server's clock may have been set back, or the expiry removed. Callers
-- that wait or try do so, because the holder may be gone. Returns the time left of the grant, in ms.
local function clamp(grant, lease)
  local left = redis.call('PTTL', grant)
  lease = tonumber(lease)
  if lease and (left > lease or left < 0) then
    redis.call('PEXPIRE', grant, lease)
    return lease
  end
  return left
end

-- Returns the time left of a grant, in ms.
local function left_of(grant, held)
  return math.max(math.min(redis.call('PTTL', grant), tonumber(string.match(held, '^%d+|(%d+)'))), 0)
end

-- Returns a place before all waiters, for owners that were granted the lock before them and do not know their place.
local function before_all(queue, now)
  local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
  return math.min(tonumber(head or now), now) - 1
end

-- Removes from the queue the neighbours of a head that has been removed already, as far as they have its session and
-- its lease. Returns the owners that are still alive, the head's first, and their number.
local function cohort(queue, owner, session_id, lease, now)
  local tail = '|' .. session_id .. '|' .. lease .. '|'
  local first, last = #owner + 1, #owner + #tail
  local neighbours = redis.call('ZRANGE', queue, 0, 0) -- most often the next one is of another process
  if not neighbours[1] or string.sub(neighbours[1], first, last) ~= tail then
    return owner, 1
  end
  neighbours = redis.call('ZRANGE', queue, 0, COHORT_AT_MOST - 2, 'WITHSCORES')
  local owners, taken = { owner }, 0
  for i = 1, #neighbours, 2 do
    local member = neighbours[i]
    if string.sub(member, first, last) ~= tail then
      break
    end
    taken = taken + 1
    if neighbours[i + 1] + string.sub(member, last + 1) * 1000 > now then
      owners[#owners + 1] = string.sub(member, 1, #owner)
    end
  end
  redis.call('ZREMRANGEBYRANK', queue, 0, taken - 1)
  return table.concat(owners, ' '), #owners
end

-- Removes the places of a session whose process does not listen. Once it listens again, it finds that they are gone,
-- and queues again.
local function set_aside(queue, session_id)
  local first, last = OWNER_DIGITS + 2, OWNER_DIGITS + 1 + #session_id
  local places = {}
  for _, member in ipairs(redis.call('ZRANGE', queue, 0, ENTRIES_AT_MOST - 1)) do
    if string.sub(member, first, last) == session_id then
      places[#places + 1] = member
    end
  end
  if places[1] then
    redis.call('ZREM', queue, unpack(places))
  end
  return #places
end

-- Grants the lock to the first waiter that is alive and reachable, with its neighbours, and returns the new owners. If
-- there is none, deletes the grant, and returns nil and whether it stopped at the limit of entries with others left.
-- `head` is the result of the caller's ZPOPMIN. The first write is thus ZPOPMIN or DEL. Redis allows both when it is
-- out of memory, and then lets the script go on writing. `claimed` is nil if the caller does not know that key.
local function grant_next(head, grant, queue, claimed, fence, floor, claim)
  local now
  local entries = 0
  while head[1] do
    if not now then
      local time = redis.call('TIME')
      now = time[1] * 1000000 + time[2]
    end
    entries = entries + 1
    local owner, session_id, lease, wait = string.match(head[1], MEMBER)
    if not owner then
      -- Free, unless another caller comes first. A missed message does no harm: the callers try now and then.
      redis.pcall('PUBLISH', channel_of(string.sub(head[1], 8)), 'free|' .. grant)
    elseif head[2] + wait * 1000 > now then
      local owners, count = cohort(queue, owner, session_id, lease, now)
      local token = next_token(fence, floor, count)
      local given = string.format('%.0f|', token) .. lease .. '|'
      redis.call('SET', grant, given .. session_id .. '|' .. owners, 'PX', math.min(tonumber(lease), tonumber(claim)))
      -- No owner may hold a lock without being told: a grant that nobody hears is not given.
      local told = given .. owners .. '|' .. grant
      local signature = redis.sha1hex(session_id .. told .. session_id)
      local heard = redis.pcall('PUBLISH', channel_of(session_id), signature .. '|' .. told)
      if type(heard) == 'number' and heard > 0 then
        if claimed and tonumber(lease) >= TELLING_LEASE then
          redis.call('SET', claimed, session_id, 'PX', math.min(tonumber(lease), tonumber(claim)) + 500)
        elseif claimed then
          redis.call('DEL', claimed)
        end
        return owners
      end
      entries = entries + set_aside(queue, session_id)
    end
    if entries >= ENTRIES_AT_MOST then
      redis.call('DEL', grant, claimed or grant)
      return nil, redis.call('EXISTS', queue) == 1
    end
    head = redis.call('ZPOPMIN', queue)
  end
  redis.call('DEL', grant, claimed or grant)
  return nil, false
end

-- Removes the places of a session that was granted the lock and has let the claim expire, because it does not listen.
-- It delays the others by one claim, however many callers wait there. `speaks` is the calling session, which does
-- listen.
local function set_claimant_aside(queue, claimed, speaks)
  local session_id = redis.call('GET', claimed)
  if session_id then
    redis.call('DEL', claimed)
    if session_id ~= speaks then
      set_aside(queue, session_id)
    end
  end
end

-- Grants a lock whose grant has expired or was deleted without a release to the next waiter. Sets a claimant that let
-- its claim expire aside first.
local function grant_expired(grant, queue, claimed, fence, floor, claim, speaks)
  set_claimant_aside(queue, claimed, speaks)
  return grant_next(redis.call('ZPOPMIN', queue), grant, queue, claimed, fence, floor, claim)
end

