-- Reads or changes a latch. A round of the latch has a lock of its own. While the round is open, and somebody waits for it, the
-- grant of this lock is that of a kept lock (see retain.lua), and those who wait are readers in its queue. They enter when all
-- parts are counted, or when the round is over.
--
-- KEYS: the latch: a sorted set that contains the present round, `generation|parts|end (server time in ms)|results`, with the score
-- 0, and each counted part, behind the sign `=`, with the score 1. `results` are the earlier rounds: for each of them ` generation+`
-- if all of its parts were counted, or else ` generation-`. Then the fence; and, unless the caller only reads or joins, grant,
-- queue and claim of the lock of its round.
--
-- ARGV:
-- 1. 'read', 'join', 'keep', 'count' or 'restart'
-- 2. the generation of the caller's round, for the last three of them
-- 3. 'count': the part
-- 4. the number of parts of a new round, for 'join' and 'restart'
-- 5. the time that a new round lasts, in ms
-- 6. token floor (see next_token.lua)
-- 7. time within which a session must confirm a grant (a claim), in ms
-- 8. the words that tell people who waits
local latch, fence = KEYS[1], KEYS[2]
local step, mine = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local round = redis.call('ZRANGE', latch, 0, 0)[1]
local generation, parts, ends, results = string.match(round or '', '^(%d+)|(%d+)|(%d+)|(.*)$')
if round and not generation then
  redis.call('GET', latch) -- fails: another program has stored this sorted set
end
local counted = round and redis.call('ZCARD', latch) - 1 or 0
if step == 'join' and not round or step == 'restart' and (not round or generation == mine) then
  if round then
    results = ' ' .. generation .. (counted >= tonumber(parts) and '+' or '-') .. results
    results = string.sub(results, 1, 1200) -- the newest of them; a result that is cut off has no sign
  end
  redis.call('DEL', latch)
  generation = string.format('%.0f', next_token(fence, ARGV[6], 1))
  parts, counted, ends, results = ARGV[4], 0, string.format('%.0f', now + ARGV[5]), results or ''
  redis.call('ZADD', latch, 0, table.concat({ generation, parts, ends, results }, '|'))
  redis.call('PEXPIRE', latch, 2 * ARGV[5])
elseif not round then
  ends = 0
end
local left = math.max(ends - now, 0)
if step == 'count' and generation == mine and left > 0 and counted < tonumber(parts) then
  counted = counted + redis.call('ZADD', latch, 1, '=' .. ARGV[3])
end
local grant = KEYS[3]
if grant then
  local held = read(grant)
  local is_open = generation == mine and left > 0 and counted < tonumber(parts)
  if is_open and step == 'keep' and not held then
    local kept = table.concat({ mine, left, '', string.rep('0', OWNER_DIGITS), ARGV[8], time[1] .. '.' .. time[2] }, '|')
    redis.call('SET', grant, kept, 'PX', left)
  elseif not is_open and held and held ~= SHARED then
    grant_next(redis.call('ZPOPMIN', KEYS[4]), grant, KEYS[4], KEYS[5], fence, ARGV[6], ARGV[7])
  end
end
if not generation then
  return false
end
return { generation, parts, counted, left, results }
