-- Shared by the scripts that give a lock away.
--
-- State of a lock, all in one slot:
--   grant  string  token|lease|inbox|owner owner …   expires with the lease
--   queue  zset    owner|inbox|lease|wait            score: microseconds at which it was queued, never repeated
--                 and after all of these `notify|inbox`, score infinite, for each inbox to be woken when nobody queues
--   fence  string  the newest token of the slot

-- No grant lasts longer than its lease: the server's clock may have been set back, or the expiry taken away. Whoever
-- waits or tries sees to it, for the holder may be gone.
local function clamp(grant, held)
  local lease, left = tonumber(string.match(held, '^%d+|(%d+)')), redis.call('PTTL', grant)
  if lease and (left > lease or left < 0) then
    redis.call('PEXPIRE', grant, lease)
  end
end

-- Gives the lock to the first waiter that is alive and can be told, or deletes it. Returns the owner it gave it to.
-- `head` is what ZPOPMIN has just returned: that, or DEL, is the first write, after which Redis lets a script grow even
-- when it is out of memory.
local function hand_on(head, grant, queue, fence, floor, claim)
  local now
  while head[1] do
    if not now then
      local time = redis.call('TIME')
      now = time[1] * 1000000 + time[2]
    end
    local owner, inbox, lease, wait = string.match(head[1], '^(%x+)|([^|]+)|(%d+)|(%d+)$')
    if not owner then
      -- Free, but for those who hear of it. Not heard is no harm: they try now and then.
      redis.pcall('PUBLISH', string.sub(head[1], 8), 'free|' .. grant)
    elseif head[2] + wait * 1000 > now then
      local given = string.format('%.0f|', next_token(fence, floor)) .. lease .. '|'
      redis.call('SET', grant, given .. inbox .. '|' .. owner, 'PX', math.min(tonumber(lease), tonumber(claim)))
      -- Nobody may be left behind holding a lock it was not told of: not heard is not given.
      local heard = redis.pcall('PUBLISH', inbox, given .. owner .. '|' .. grant)
      if type(heard) == 'number' and heard > 0 then
        return owner
      end
    end
    head = redis.call('ZPOPMIN', queue)
  end
  redis.call('DEL', grant)
  return nil
end

