-- Takes several locks if each of them is either held by the caller already, or free and without waiters. Otherwise
-- takes none.
--
-- KEYS: fence, then grant, queue and claim of each lock
--
-- ARGV:
-- 1. lease in ms
-- 2. token floor (see next_token.lua)
-- 3. time within which a session must confirm a grant (a claim), in ms
-- 4. time limit (server time in µs, '' if there is none)
-- 5. for each lock: `lease|session_id|owner|words|since`, the part of its grant after the token. The lease ends with the letter
--    `r` if the caller reads
-- 6. given if the answer to an earlier request of a reader was lost

if ARGV[4] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[4]) then
    return 0 -- late: nothing was changed, because the caller no longer waits for this request
  end
end
local TERMS = '^%d+r?|[^|]*|%x+' -- `lease|session_id|owner` of a grant with a single owner
local lease = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local granted = {}
limit_key = nil -- a semaphore is no part of a list
for i = 2, #KEYS, 3 do
  local number = (i + 1) / 3
  local tail = ARGV[4 + number]
  local reads = string.find(tail, '^%d+r')
  local held = read(KEYS[i])
  if held == SHARED then
    local text, left
    if ARGV[5 + (#KEYS - 1) / 3] then
      text, left = readers().find(KEYS[i], string.match(tail, '^[^|]*|[^|]*|(%x+)'), now)
    end
    local session_id = string.match(tail, '^[^|]*|([^|]*)')
    if text then
      -- An earlier request was carried out, so the caller already holds this lock.
      granted[number] = { string.match(text, '^%d+'), math.min(left, tonumber(lease)) }
    else
      readers().beside(KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[1], ARGV[2], ARGV[3], session_id)
      held = read(KEYS[i])
      if held and not (held == SHARED and reads and redis.call('EXISTS', KEYS[i + 1]) == 0) then
        return number
      end
    end
  end
  if not held and redis.call('EXISTS', KEYS[i + 1]) == 1 then
    -- If a waiter is alive and reachable, the first such waiter gets the lock.
    local queue = KEYS[i + 1]
    local session_id = string.match(tail, '^[^|]*|([^|]*)')
    if not is_unwanted(KEYS[i], queue, KEYS[i + 2], KEYS[1], ARGV[2], ARGV[3], session_id) then
      held = read(KEYS[i])
      if held == SHARED then
        return number -- the first waiters are readers
      end
      if not held then
        return number -- a waiter may be among the entries that this script has not examined or has removed
      end
    end
  end
  if held and held ~= SHARED then
    local token, rest = string.match(held, '^(%d+)|(.*)$')
    -- Only the first three fields are compared, because a repeated request has another `since`.
    if not rest or string.match(rest, TERMS) ~= string.match(tail, TERMS) then
      return number -- the number of the first lock that is not free
    end
    -- An earlier request was carried out, so the caller already holds this lock.
    granted[number] = { token, math.min(redis.call('PTTL', KEYS[i]), tonumber(lease)) }
  end
end
for i = 2, #KEYS, 3 do
  local number = (i + 1) / 3
  if not granted[number] then
    local token = string.format('%.0f', next_token(KEYS[1], ARGV[2], 1))
    if string.find(ARGV[4 + number], '^%d+r') then
      readers().add(KEYS[i], token, ARGV[4 + number], tonumber(lease), '', now)
    else
      redis.call('SET', KEYS[i], token .. '|' .. ARGV[4 + number], 'PX', lease)
    end
    granted[number] = { token, tonumber(lease) }
  end
end
return granted -- the caller holds all locks. Each entry is a token, and the time left of the grant in ms
