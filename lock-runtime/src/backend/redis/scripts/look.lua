-- One heartbeat of a process that waits: it frees what expired, heals pushes that got lost, and finds queues that did.
--
-- KEYS: fence, then grant and queue of each lock
-- ARGV: 1 inbox, 2 floor, 3 claim in ms, then for each lock a member of its queue that waits in this process
local found = {}
for i = 2, #KEYS, 2 do
  local member = ARGV[3 + i / 2]
  local held = redis.call('GET', KEYS[i])
  if not held then
    -- Tells the head, which may be one of ours.
    hand_on(redis.call('ZPOPMIN', KEYS[i + 1]), KEYS[i], KEYS[i + 1], KEYS[1], ARGV[2], ARGV[3])
    held = redis.call('GET', KEYS[i])
  else
    clamp(KEYS[i], held)
  end
  local inbox = string.match(held or '', '^%d+|%d+|([^|]+)|')
  if inbox == ARGV[1] then
    found[#found + 1] = { i / 2, held, left_of(KEYS[i], held) }
  end
  local owner = string.match(member, '^%x+')
  if not redis.call('ZSCORE', KEYS[i + 1], member) and not string.find(held or '', owner, 1, true) then
    found[#found + 1] = i / 2 -- neither queued nor inside: the server has lost the queue
  end
end
-- The number of its lock, the grant and what is left of it in ms for each grant of this inbox; the number alone of each
-- lock to queue for again.
return found
