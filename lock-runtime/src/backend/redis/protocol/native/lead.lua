-- Keeps the record of a leader: when it was last known to lead, for how long nobody led before its term, and whether it is
-- asked to resign. The record outlives the term, so that the next leader learns for how long nobody led.
--
-- KEYS: grant, record
--
-- ARGV:
-- 1. `token|`, the beginning of the leader's grant
-- 2. 'lead' while the term lasts, and before the leader gives its role up; 'dismiss' to ask the leader to resign
-- 3. time after which the record is forgotten, in ms
-- 4. the leader's token. It differs from that of the grant if callers of one client share the grant
--
-- Returns nil if the grant no longer exists. Otherwise returns for how long nobody led before this term (in ms; -1 if no
-- earlier term is known), and 1 if the leader is asked to resign. A repeated request gets the same answer.
local held = redis.pcall('GET', KEYS[1])
if type(held) ~= 'string' or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then
  return false
end
local record = redis.call('GET', KEYS[2]) or ''
local led, gap, asked, of = string.match(record, '^(%d+) (-?%d+) ([01]) (%d+)$')
local function store(...)
  redis.call('SET', KEYS[2], string.format('%.0f %.0f %s %s', ...), 'PX', ARGV[3])
end
if ARGV[2] == 'dismiss' then
  if of then
    store(led, gap, '1', of)
  end
  return { -1, 1 }
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if of ~= ARGV[4] then
  gap = led and math.max(0, now - led) or -1 -- the first step of a term
  asked = '0'
end
store(now, gap, asked, ARGV[4])
return { tonumber(gap), tonumber(asked) }
