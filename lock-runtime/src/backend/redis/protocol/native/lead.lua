-- Keeps the record of a leader. The record says when a leader was last known to lead, and which grant was asked to
-- resign. It outlives the term, so that the next leader learns for how long nobody led.
--
-- KEYS: grant, record
--
-- ARGV:
-- 1. `token|`, the beginning of the leader's grant
-- 2. 'lead' while the term lasts, 'end' before the leader gives its role up, 'dismiss' to ask the leader to resign
-- 3. time after which the record is forgotten, in ms
--
-- Returns nil if the grant no longer exists. Otherwise returns the time since the last such step (in ms; -1 if no step is
-- known), and 1 if the leader is asked to resign.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then
  return false
end
local led, dismissed = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)|(.*)$')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local asked = dismissed or ''
if ARGV[2] == 'dismiss' then
  asked = ARGV[1]
end
redis.call('SET', KEYS[2], string.format('%.0f|', now) .. asked, 'PX', ARGV[3])
return { led and math.max(0, now - led) or -1, dismissed == ARGV[1] and 1 or 0 }
