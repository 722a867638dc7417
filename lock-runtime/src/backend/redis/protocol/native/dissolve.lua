-- Lets one member of a cohort keep the grant alone, and queues the members behind it again at their places. The members
-- before it have left. They stay in the grant, so that the tokens of its owners do not change.
--
-- KEYS: grant, queue. Without the queue, the members behind it are only taken out of the grant: while a slot moves to another
-- server of a cluster, the servers refuse scripts with several keys.
--
-- ARGV:
-- 1. token of the grant
-- 2. the owner that keeps the grant
-- 3. the lease that this owner wants, in ms; the lease is extended if less is left (0: not extended)
-- 4. for each member behind it: its queue entry (`owner|session_id|lease|wait|words`), and then its place
local held = redis.pcall('GET', KEYS[1])
held = type(held) == 'string' and held -- not a sorted set of readers
local token, longest, session_id, owners, rest = string.match(held or '', '^(%d+)|(%d+)|([^|]+)|([%x ]+)(|.*)$')
local left = redis.call('PTTL', KEYS[1])
local _, last = string.find(owners or '', ARGV[2], 1, true)
if token ~= ARGV[1] or not last or left == 0 then
  return -1 -- the lock is not held with this token, or not by this owner: nothing was changed
end
if left < 0 or left > tonumber(longest) then
  left = tonumber(longest) -- the clock was set back, or the expiry was removed, but no grant may outlast its lease
end
if tonumber(ARGV[3]) > left then
  left = tonumber(ARGV[3])
  longest = left > tonumber(longest) and ARGV[3] or longest
end
redis.call('PEXPIRE', KEYS[1], left) -- a server that is out of memory allows SET only after PEXPIRE
owners = string.sub(owners, 1, last)
redis.call('SET', KEYS[1], table.concat({ token, longest, session_id, owners }, '|') .. rest, 'PX', left)
local entries, wait = {}, 0
for i = 4, #ARGV, 2 do
  entries[#entries + 1] = ARGV[i + 1]
  entries[#entries + 1] = ARGV[i]
  wait = math.max(wait, tonumber(string.match(ARGV[i], '^%x+|[^|]+|%d+|(%d+)') or 0))
end
if entries[1] then
  redis.call('ZADD', KEYS[2], 'NX', unpack(entries))
  -- The queue must not expire before its last waiter gives up.
  if redis.call('PTTL', KEYS[2]) < 2 * wait + 1000 then
    redis.call('PEXPIRE', KEYS[2], 2 * wait + 1000)
  end
end
return left -- the time left of the grant, in ms
