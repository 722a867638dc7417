-- Second part of an acquisition. Queues the caller if another owner holds the lock and the caller waits. Otherwise
-- acquire.lua continues.

local lease, session_id, owner, rest = string.match(ARGV[1], '^([1-9][%drp/]*)|([^|]+)|(%x+)()|')
if not lease or lease ~= ARGV[2] then
  return redis.error_reply('BADLEASE a lease is a whole number of ms from 1') -- a lease of 0 would delete the key
end

-- Lua hashes each string that a script creates. To save time, this script creates few strings that contain the words
-- (where the caller runs).
local words = string.sub(ARGV[1], rest, (string.find(ARGV[1], '|', rest + 1, true) or 0) - 1)
local member = owner .. '|' .. session_id .. '|' .. lease .. '|' .. ARGV[4] .. words
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  if not string.find(redis.call('ZRANGE', KEYS[1], 0, 0)[1] or '', '^%d+%??|%d+|%d+[rp]') then
    redis.call('GET', KEYS[1]) -- fails: readers do not hold the lock (see grant_next.lua)
  end
  held = 'shared'
end

-- Queues the caller behind all queued owners, or at its place if it has one.
local function enqueue()
  local time = redis.call('TIME')
  local score = time[1] * 1000000 + time[2]
  local wait = tonumber(ARGV[4])
  local old = ARGV[7] and tonumber(ARGV[7])
  local has_place = old and old < score and old + wait * 1000 > score
  if has_place then
    score = old
  end
  -- The queue must not expire before its last waiter gives up. To save commands, not every caller sets the queue's
  -- expiry. Time is divided into stretches, each as long as the caller's wait. When the first owner of a stretch is
  -- queued, the script sets the expiry to at least two waits later. This expiry is also late enough for each owner that
  -- is queued in the same stretch with the same wait. So the script does not set the expiry if the last queued owner
  -- has the caller's lease and wait, was queued in the same stretch, and was queued before the present time of the clock.
  local extended = false
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  if last[2] and tonumber(last[2]) >= 2 ^ 53 then
    -- This score is not a place. A release removes the entry when it is first in the queue.
    last = redis.call('ZRANGE', KEYS[2], '(9007199254740992', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
  end
  if last[1] and not has_place then
    local before = tonumber(last[2])
    local stretch = wait * 1000
    if before >= score then
      -- The caller is placed last, even if the clock was set back. While the clock is behind, the places say nothing
      -- about the time of the last expiry.
      score = before + 1
    else
      extended = string.find(last[1], '|' .. lease .. '|' .. ARGV[4] .. '|', #owner + 1, true)
        and math.floor(before / stretch) == math.floor(score / stretch)
    end
  end
  local place = string.format('%.0f', score)
  if redis.call('ZADD', KEYS[2], 'NX', place, member) == 0 then
    place = redis.call('ZSCORE', KEYS[2], member)
  end
  if not extended and redis.call('PTTL', KEYS[2]) < 2 * wait + 1000 then
    redis.call('PEXPIRE', KEYS[2], 2 * wait + 1000)
  end
  -- Returns the caller's place, and the time left of the holder's grant in ms. If the caller has to queue again, its
  -- request contains this place. The caller's session sends a probe when the time left has passed.
  return { 'queued', place, held and redis.call('PTTL', KEYS[1]) or 0 }
end

-- This case is frequent, too, so it comes before the function definitions of grant_next.lua, which take time to
-- execute.
if held and ARGV[4] ~= '0' and not string.find(held, owner, 1, true) then
  return enqueue()
end

