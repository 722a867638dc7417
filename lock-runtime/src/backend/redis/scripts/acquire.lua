-- The rest of acquire_free.lua: the lock is held or waited for, or the server has lost its counter.

local lease, inbox, owner = string.match(ARGV[1], '^(%d+)|([^|]+)|(%x+)$')
if not lease or lease ~= ARGV[2] or tonumber(lease) < 1 then
  return redis.error_reply('BADLEASE a lease is a whole number of ms from 1') -- 0 would delete the key later on
end

local function take()
  local token = next_token(KEYS[3], ARGV[3])
  redis.call('SET', KEYS[1], string.format('%.0f|', token) .. ARGV[1], 'PX', lease)
  return token -- inside, for the whole lease
end

local member = owner .. '|' .. inbox .. '|' .. lease .. '|' .. ARGV[4]
local held = redis.call('GET', KEYS[1])
if not held then
  -- Free. If a queue lives, its head gets the lock, whoever asks.
  if redis.call('ZRANGE', KEYS[2], 0, 0)[1] == member then
    redis.call('ZREM', KEYS[2], member)
    return take()
  end
  if not hand_on(KEYS[1], KEYS[2], KEYS[3], ARGV[3], ARGV[5]) then
    return take() -- those who queued are gone
  end
  held = redis.call('GET', KEYS[1])
end
if string.find(held, owner, 1, true) then
  -- Mine already: an earlier request was carried out. The same grant, and what is left of it.
  local token, stored = string.match(held, '^(%d+)|(%d+)')
  return { 'held', token, math.min(redis.call('PTTL', KEYS[1]), tonumber(stored)) }
end
if ARGV[4] == '0' then
  return { 'busy' }
end

local time = redis.call('TIME')
local score = time[1] * 1000000 + time[2]
if ARGV[6] ~= '' then
  score = tonumber(ARGV[6])
else
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
  if last and tonumber(last) >= score then
    score = last + 1 -- a clock that stepped back does not reorder
  end
end
if redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', score), member) == 0 then
  score = redis.call('ZSCORE', KEYS[2], member)
end
-- The queue outlives its last living member. Extended in large steps, so that most callers need not.
local wait = tonumber(ARGV[4])
if redis.call('PTTL', KEYS[2]) < wait + 1000 then
  redis.call('PEXPIRE', KEYS[2], 2 * wait + 1000)
end
return { 'queued', string.format('%.0f', score) } -- the place, for a retry to come back to
