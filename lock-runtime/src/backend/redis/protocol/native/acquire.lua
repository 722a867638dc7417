-- Third part of an acquisition. Runs if neither acquire_free.lua nor acquire_queue.lua has returned an answer. There
-- are three such cases:
--
-- - The lock is free, but its queue has entries.
-- - Another owner holds the lock, and the caller does not wait.
-- - The caller already holds the lock.

local shares = not tonumber(lease)

-- Returns whether the caller can take the free lock: an operator can set fewer permits than it takes.
local function fits()
  return not shares or readers().fits(KEYS[1], lease)
end

local function take()
  local token = next_token(KEYS[3], ARGV[3], string.match(lease, 'p(%d+)') or 1)
  if shares then
    local time = redis.call('TIME')
    local left = tonumber(string.match(lease, '^%d+'))
    readers().add(KEYS[1], token, ARGV[1], left, '', time[1] * 1000000 + time[2])
  else
    redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', lease)
  end
  return token -- granted, with the whole lease left
end

if held == SHARED then
  -- The caller does not wait, so no probe is sent for it.
  readers().beside(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[5], session_id)
  held = read(KEYS[1])
  if held == SHARED and redis.call('EXISTS', KEYS[2]) == 0 and readers().fits(KEYS[1], lease) then
    return take()
  end
end

if not held then
  -- The lock is free. If owners are queued, only the first queued owner is allowed to take the lock.
  local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if head == member and fits() then
    redis.call('ZREM', KEYS[2], member)
    return take()
  end
  -- If the caller waits, its session soon sends a probe, which grants the lock to the first owner. For a caller that
  -- does not wait, no probe is sent, so this script grants the lock to the first owner.
  if ARGV[4] == '0' then
    if is_unwanted(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[3], ARGV[5], session_id) and fits() then
      return take() -- no queued entry is a waiter that is alive
    end
    held = read(KEYS[1])
  end
end
if held and string.find(held, owner, 1, true) then
  -- An earlier request of the caller was carried out, so the caller already holds the lock. Returns the grant, the time
  -- left of the grant in ms, and the caller's place, which is before the places of all waiters.
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local place = math.min(before_all(KEYS[2], now), tonumber(ARGV[7] or now))
  return { 'held', held, left_of(KEYS[1], held), string.format('%.0f', place) }
end
if ARGV[4] == '0' then
  if held == SHARED then
    held = string.match(redis.call('ZRANGE', KEYS[1], 0, 0)[1] or '', '|(.*)$') or false
  elseif held then
    clamp(KEYS[1], string.match(held, '^%d+|(%d+)'))
  end
  return { 'busy', held and string.sub(held, 1, 4096) or false }
end

return enqueue()
