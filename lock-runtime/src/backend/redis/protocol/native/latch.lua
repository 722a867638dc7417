-- Reads or changes a latch. While a round of the latch is open, the grant is that of a kept lock (see retain.lua), and those
-- who wait for the latch are readers in its queue. They enter when all parts are counted, or when the round is over.
--
-- KEYS: grant, queue, fence, claim, and the latch: a sorted set that contains the present round,
-- `generation|parts|end (server time in ms)|generation before|1 if all of its parts were counted`, with the score 0, and
-- each counted part, behind the sign `=`, with the score 1
--
-- ARGV:
-- 1. 'read', 'join', 'count' or 'restart'
-- 2. 'count': the part; 'restart': the generation to end
-- 3. the number of parts of a new round
-- 4. the time that a new round lasts, in ms
-- 5. token floor (see next_token.lua)
-- 6. time within which a session must confirm a grant (a claim), in ms
-- 7. the words that tell people who has begun a new round
local step = ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local round = redis.call('ZRANGE', KEYS[5], 0, 0)[1]
if not round and step == 'read' then
  return false
end
local generation, parts, ends, before, had = string.match(round or '', '^(%d+)|(%d+)|(%d+)|(%d+)|([01])$')
if round and not generation then
  redis.call('GET', KEYS[5]) -- fails: another program has stored this sorted set
end
local counted = round and redis.call('ZCARD', KEYS[5]) - 1
if not round or step == 'restart' and generation == ARGV[2] then
  before = generation or '0'
  had = round and counted >= tonumber(parts) and '1' or '0'
  redis.call('DEL', KEYS[5])
  generation = string.format('%.0f', next_token(KEYS[3], ARGV[5], 1))
  parts, counted, ends = ARGV[3], 0, string.format('%.0f', now + ARGV[4])
  redis.call('ZADD', KEYS[5], 0, table.concat({ generation, parts, ends, before, had }, '|'))
  redis.call('PEXPIRE', KEYS[5], 2 * ARGV[4])
end
local left = math.max(ends - now, 0)
if step == 'count' and left > 0 and counted < tonumber(parts) then
  counted = counted + redis.call('ZADD', KEYS[5], 1, '=' .. ARGV[2])
end
if step ~= 'read' then
  local held = read(KEYS[1])
  local is_open = left > 0 and counted < tonumber(parts)
  local is_kept = held and string.find(held, '^%d+|%d+||')
  if is_kept and not (is_open and string.match(held, '^%d+') == generation) then
    -- The round of this grant is over, so those who waited for it enter.
    grant_next(redis.call('ZPOPMIN', KEYS[2]), KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[5], ARGV[6])
    held = read(KEYS[1])
  end
  if is_open and not held then
    local kept = table.concat({ generation, left, '', string.rep('0', OWNER_DIGITS), ARGV[7], time[1] .. '.' .. time[2] }, '|')
    redis.call('SET', KEYS[1], kept, 'PX', left)
  end
end
return { generation, parts, counted, left, before, had }
