-- Second part of an acquisition. Runs if acquire_free.lua has not answered: the lock is held, its queue has entries, or
-- the server may have lost its token counter.

local lease, session_id, owner, words = string.match(ARGV[1], '^(%d+)|([^|]+)|(%x+)(|[^|]*)|')
if not lease or lease ~= ARGV[2] or tonumber(lease) < 1 then
  return redis.error_reply('BADLEASE a lease is a whole number of ms from 1') -- a lease of 0 would delete the key
end

local function take()
  if ARGV[7] then
    redis.call('ZREM', KEYS[2], ARGV[7])
  end
  local token = next_token(KEYS[3], ARGV[3], 1)
  redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', lease)
  return token -- granted, with the whole lease left
end

local terms = '|' .. ARGV[4] .. words -- the end of the caller's entry in the queue
local member = owner .. '|' .. session_id .. '|' .. lease .. terms
local held = redis.call('GET', KEYS[1])
if not held then
  -- The lock is free. If owners are queued, only the first of them may take the lock.
  local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if head == member then
    redis.call('ZREM', KEYS[2], member)
    return take()
  end
  if not head or string.sub(head, 1, 7) == 'notify|' then
    return take() -- no owner is queued
  end
  -- If the caller waits, its session soon sends a probe, which grants the lock to the first owner. For a caller that
  -- does not wait, no probe is sent, so this script grants the lock to the first owner.
  if ARGV[4] == '0' then
    local given, more = grant_next(redis.call('ZPOPMIN', KEYS[2]), KEYS[1], KEYS[2], nil, KEYS[3], ARGV[3], ARGV[5])
    if not given and not more then
      return take() -- all queued entries have expired
    end
    held = redis.call('GET', KEYS[1])
  end
end
if held and string.find(held, owner, 1, true) then
  -- An earlier request of the caller was carried out, so the caller already holds the lock. Returns the grant, the time
  -- left of the grant in ms, and a place before the places of all waiters.
  local time = redis.call('TIME')
  local place = before_all(KEYS[2], time[1] * 1000000 + time[2])
  return { 'held', held, left_of(KEYS[1], held), string.format('%.0f', place) }
end
if ARGV[4] == '0' then
  if held then
    clamp(KEYS[1], string.match(held, '^%d+|(%d+)'))
  end
  if ARGV[7] then
    redis.call('ZADD', KEYS[2], '+inf', ARGV[7])
    if redis.call('PTTL', KEYS[2]) < 1000 then
      redis.call('PEXPIRE', KEYS[2], 2000) -- the session tries again long before, and repeats this
    end
  end
  return { 'busy', held and string.sub(held, 1, 4096) or false }
end

local time = redis.call('TIME')
local score = time[1] * 1000000 + time[2]
local wait = tonumber(ARGV[4])
-- The queue must not expire before its last waiter gives up. To save commands, not every caller sets the queue's
-- expiry. Time is divided into stretches that are as long as the caller's wait. If the last owner in the queue has the
-- same wait and words, and was queued in the same stretch, the expiry was more than two waits ahead when the first such owner of
-- this stretch was queued. This expiry is late enough for the caller, too.
local extended = false
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
if last[2] == 'inf' then
  last = redis.call('ZRANGE', KEYS[2], '(+inf', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
end
if last[1] then
  local before = tonumber(last[2])
  if before >= score then
    score = before + 1 -- the caller is placed last, even if the clock was set back
  end
  local stretch = wait * 1000
  extended = string.sub(last[1], -#terms) == terms and math.floor(before / stretch) == math.floor(score / stretch)
end
local place = string.format('%.0f', score)
if redis.call('ZADD', KEYS[2], 'NX', place, member) == 0 then
  place = redis.call('ZSCORE', KEYS[2], member)
end
if not extended and redis.call('PTTL', KEYS[2]) < 2 * wait + 1000 then
  redis.call('PEXPIRE', KEYS[2], 2 * wait + 1000)
end
-- Returns the caller's place, and the time left of the holder's grant in ms. If the caller has to queue again, it asks
-- for the same place. The caller's session sends a probe when the time left has passed.
return { 'queued', place, held and redis.call('PTTL', KEYS[1]) or 0 }
