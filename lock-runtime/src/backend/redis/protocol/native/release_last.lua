-- First half of a release. If the queue is empty, frees the lock, which completes the release. Otherwise removes the
-- first entry, `head`, from the queue, and release.lua continues.
--
-- KEYS: grant, queue, fence, claim
--
-- ARGV:
-- 1. `token|`, the token of the grant
-- 2. token floor (see next_token.lua)
-- 3. time within which a session must confirm a grant (a claim), in ms
local held = redis.pcall('GET', KEYS[1])
local head
if type(held) == 'table' then
  -- Readers hold the lock (see grant_next.lua).
  local token = string.match(ARGV[1], '^%d+')
  local reader = redis.call('ZRANGE', KEYS[1], token, token, 'BYSCORE')[1]
  if not reader then
    return 0 -- the lock is not held with this token: nothing was changed
  end
  redis.call('ZREM', KEYS[1], reader)
  for i = 1, (string.match(reader, '^%d+%??|%d+|%d+p(%d+)') or 1) - 1 do
    redis.call('ZREM', KEYS[1], string.format('=%.0f', token + i))
  end
  -- The reader that has left may have been the last to end. If few readers are left, the key expires with them.
  local few, last = redis.call('ZRANGE', KEYS[1], 0, 8), 0
  if #few > 0 and #few <= 8 then
    local time = redis.call('TIME')
    for _, other in ipairs(few) do
      local deadline, mark = string.match(other, '^(%d+)(%??)')
      last = math.max(last, (deadline or 0) + (mark == '?' and 500 or 0))
    end
    last = last - time[1] * 1000 - math.floor(time[2] / 1000)
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(last, 1)))
  end
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return 1 -- released, nobody waits
  end
elseif not held or string.find(held, ARGV[1], 1, true) ~= 1 then
  return 0 -- the lock is not held with this token: nothing was changed
end
-- The common case comes before all function definitions, because executing the definitions takes time.
if type(held) == 'string' then
  head = redis.call('ZPOPMIN', KEYS[2])
  if not head[1] then
    redis.call('DEL', KEYS[1], KEYS[4])
    return 1 -- released, nobody waits
  end
end

