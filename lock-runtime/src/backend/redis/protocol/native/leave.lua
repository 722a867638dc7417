-- Removes the caller from the queue. If ARGV[5] is 'abandon', also releases a grant that belongs to the caller alone.
-- If ARGV[5] is 'enter', also grants the lock to a caller that was queued, if the lock is free and no earlier waiter is
-- alive. Returns the caller's place if the caller was queued and was not granted the lock, or a place before all waiters
-- if its grant was released. If the caller was queued, also returns the grant, and with 'enter' the number of entries
-- before the caller's entry.
--
-- KEYS: grant, queue, fence, claim
--
-- ARGV:
-- 1. owner
-- 2. the owner's entry in the queue
-- 3. token floor (see next_token.lua)
-- 4. time within which a session must confirm a grant (a claim), in ms
-- 5. 'enter' or 'abandon'
-- 6. `lease|session_id|owner|words|since`
-- 7. session_id
local score = redis.call('ZSCORE', KEYS[2], ARGV[2])
local ahead = score and ARGV[5] == 'enter' and redis.call('ZRANK', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2]) -- a server that cannot write reports an error at this command
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local held = read(KEYS[1])
if held == SHARED and not readers().left(KEYS[1], KEYS[4], now, true) then
  held = false
end
local lease = string.match(ARGV[6], '^[^|]*')
local fits = not held
if not tonumber(lease) then
  fits = (not held or held == SHARED) and readers().fits(KEYS[1], lease)
end
if score and ARGV[5] == 'enter' and fits then
  -- The holder's lease has ended, and no script has granted the lock to a waiter yet. Or readers hold the lock, and the
  -- caller reads.
  local aside = set_claimant_aside(KEYS[2], KEYS[4], ARGV[7])
  while examined < ENTRIES_AT_MOST do
    examined = examined + 1
    local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    if not head[1] or tonumber(head[2]) > tonumber(score) then
      local token = next_token(KEYS[3], ARGV[3], string.match(lease, 'p(%d+)') or 1)
      if not tonumber(lease) then
        readers().add(KEYS[1], token, ARGV[6], tonumber(string.match(lease, '^%d+')), '', now)
        readers().admit(KEYS[1], KEYS[2], KEYS[3], ARGV[3], ARGV[4], aside, {})
      else
        redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[6], 'PX', lease)
      end
      return { 'granted', token }
    end
    local _, _, _, wait = string.match(head[1], MEMBER)
    if wait and head[2] + wait * 1000 > now then
      break -- this waiter is alive, and comes before the caller
    end
    redis.call('ZREM', KEYS[2], head[1])
  end
  if not held then
    grant_next(redis.call('ZPOPMIN', KEYS[2]), KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[4], aside)
    return { 'left' }
  end
end
if held == SHARED then
  local text, left, member
  if score then
    held = string.match(redis.call('ZRANGE', KEYS[1], 0, 0)[1] or '', '|(.*)$')
  else
    text, left, member = readers().find(KEYS[1], ARGV[1], now)
  end
  local is_abandoned = text and ARGV[5] == 'abandon' and not string.find(text, ' ', 1, true)
  if text and not is_abandoned then
    return { 'held', text, left } -- see below
  end
  if is_abandoned then
    readers().remove(KEYS[1], member)
    readers().expire(KEYS[1], now)
  end
  -- The caller may have kept readers behind it waiting, or, as the last reader, a writer.
  readers().beside(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[4], ARGV[7])
  if is_abandoned then
    return { 'left', string.format('%.0f', before_all(KEYS[2], now)) }
  end
end
if score and not held and not tonumber(lease) then
  -- The caller has kept back others, because it takes more permits than an operator has set.
  grant_expired(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[4], ARGV[7])
end
if score then
  return { 'left', score, held and string.sub(held, 1, 4096) or false, ahead or 0 }
end
if not held or not string.find(held, ARGV[1], 1, true) then
  return { 'left' } -- the caller does not hold the lock
end
if ARGV[5] == 'abandon' and not string.find(held, ' ', 1, true) then
  local place = before_all(KEYS[2], now)
  grant_next(redis.call('ZPOPMIN', KEYS[2]), KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[4])
  return { 'left', string.format('%.0f', place) }
end
-- The caller was granted the lock before it could leave. The script keeps the grant, and the caller's process decides
-- what to do with it, because another member of the cohort may hold the lock now.
return { 'held', held, left_of(KEYS[1], held) }
