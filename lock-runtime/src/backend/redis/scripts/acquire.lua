-- Takes the lock if it is free and nobody waits, else queues the caller.
--
-- KEYS: grant, queue, fence
-- ARGV: 1 owner, 2 inbox, 3 lease in ms, 4 wait in ms (0: do not queue), 5 floor, 6 claim in ms,
--       7 place ('' at first, then the score that an earlier reply gave),
--       8 not after (server time in µs, '' without limit)
local owner, inbox, lease = ARGV[1], ARGV[2], ARGV[3]

local function take()
  local token = next_token(KEYS[3], ARGV[5])
  redis.call('SET', KEYS[1], string.format('%.0f', token) .. '|' .. lease .. '|' .. inbox .. '|' .. owner, 'PX', lease)
  return token
end

if tonumber(lease) < 1 then
  return redis.error_reply('LEASE must be at least 1 ms') -- a PX of nothing would delete the key later on
end
if ARGV[8] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[8]) then
    return { 'late' } -- nothing was changed: the caller has given this request up
  end
end
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return take() -- the token: inside for the whole lease
end

local member = owner .. '|' .. inbox .. '|' .. lease .. '|' .. ARGV[4]
local held = redis.call('GET', KEYS[1])
if not held then
  -- Free, and a queue lives: the head gets it, whoever asks.
  local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if head == member then
    redis.call('ZREM', KEYS[2], member)
    return take() -- the token
  end
  if not hand_on(KEYS[1], KEYS[2], KEYS[3], ARGV[5], ARGV[6]) then
    return take() -- the token: those who queued are gone
  end
  held = redis.call('GET', KEYS[1])
end
if string.find(held, owner, 1, true) then
  -- Mine already: an earlier request was carried out. The same grant, and what is left of it.
  local stored = string.match(held, '^%d+|(%d+)')
  return { 'held', string.match(held, '^%d+'), math.min(redis.call('PTTL', KEYS[1]), tonumber(stored)) }
end
if ARGV[4] == '0' then
  return { 'busy' }
end

local time = redis.call('TIME')
local score = time[1] * 1000000 + time[2]
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
if ARGV[7] ~= '' then
  score = tonumber(ARGV[7])
elseif last[2] and tonumber(last[2]) >= score then
  score = last[2] + 1 -- a clock that stepped back does not reorder
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
