-- Lets one member of a cohort keep the grant alone, and queues the other members again at their places. The grant keeps
-- its token and its lease.
--
-- KEYS: grant, queue
--
-- ARGV:
-- 1. token of the grant
-- 2. the owner that keeps the grant
-- 3. for each other member: its queue entry (`owner|session_id|lease|wait|words`), and then its place
local held = redis.call('GET', KEYS[1])
local token, lease, session_id, owners, rest = string.match(held or '', '^(%d+)|(%d+)|([^|]+)|([%x ]+)(|.*)$')
local left = redis.call('PTTL', KEYS[1])
if token ~= ARGV[1] or not string.find(owners, ARGV[2], 1, true) or left == 0 then
  return 0 -- the lock is not held with this token, or not by this owner: nothing was changed
end
if left < 0 then
  left = lease -- the expiry was removed, but no grant may outlast its lease
end
redis.call('PEXPIRE', KEYS[1], left) -- a server that is out of memory allows SET only after PEXPIRE
redis.call('SET', KEYS[1], table.concat({ token, lease, session_id, ARGV[2] }, '|') .. rest, 'PX', left)
local entries, longest = {}, 0
for i = 3, #ARGV, 2 do
  entries[#entries + 1] = ARGV[i + 1]
  entries[#entries + 1] = ARGV[i]
  longest = math.max(longest, tonumber(string.match(ARGV[i], '^%x+|[^|]+|%d+|(%d+)') or 0))
end
if entries[1] then
  redis.call('ZADD', KEYS[2], 'NX', unpack(entries))
  -- The queue must not expire before its last waiter gives up.
  if redis.call('PTTL', KEYS[2]) < 2 * longest + 1000 then
    redis.call('PEXPIRE', KEYS[2], 2 * longest + 1000)
  end
end
return 1
