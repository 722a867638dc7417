-- One heartbeat of a process that waits: frees expired locks, returns grants whose push was lost, finds lost queues.
--
-- KEYS: fence, then grant, queue and claim of each lock
-- ARGV: 1 session_id, 2 floor, 3 claim in ms, 4 time until the next probe, in ms, then for each lock a member of its
--       queue that waits in this process
local call, match = redis.call, string.match
local found = {}
for i = 2, #KEYS, 3 do
  local grant, queue, number = KEYS[i], KEYS[i + 1], (i + 1) / 3
  local held, more = call('GET', grant), false
  if not held then
    -- Grants the lock to the head, which may be one of this process.
    more = select(2, grant_expired(grant, queue, KEYS[i + 2], KEYS[1], ARGV[2], ARGV[3], ARGV[1]))
    held = call('GET', grant)
  end
  if held then
    local lease, session_id = match(held, '^%d+|(%d+)|([^|]*)|')
    local left = clamp(grant, lease)
    if session_id == ARGV[1] then
      found[#found + 1] = { 'held', number, held, left }
    elseif left < ARGV[4] + 0 then
      found[#found + 1] = { 'ends', number, left }
    end
  elseif more then
    found[#found + 1] = { 'ends', number, 0 }
  end
  local member = ARGV[4 + number]
  if not call('ZSCORE', queue, member) and not (held and string.find(held, string.sub(member, 1, OWNER_DIGITS), 1, true)) then
    found[#found + 1] = { 'gone', number } -- neither queued nor inside: the server has lost the queue, or the grant
  end
end
-- For each lock, by its number: `held`, a grant of this session and the time left of it in ms; `ends`, when to probe
-- again, in ms; `gone`, if the caller has to queue again.
return found
