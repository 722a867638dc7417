-- Shared by the scripts that give a lock away.
--
-- State of a lock, all in one slot:
--   grant  string  token|lease|inbox|owner owner …   expires with the lease. Several owners are a block: neighbours of the
--                 queue, of one inbox and one lease, who have their turns one after the other. The token is the first one's;
--                 the others have those after it.
--   queue  zset    owner|inbox|lease|wait            score: microseconds at which it was queued, never repeated
--                 and after all of these `notify|inbox`, score infinite, for each inbox to be woken when nobody queues
--   fence  string  the newest token of the slot

local MEMBER = '^(%x+)|([^|]+)|(%d+)|(%d+)$'
local BLOCK_AT_MOST = 64

-- No grant lasts longer than its lease: the server's clock may have been set back, or the expiry taken away. Whoever
-- waits or tries sees to it, for the holder may be gone.
local function clamp(grant, held)
  local lease, left = tonumber(string.match(held, '^%d+|(%d+)')), redis.call('PTTL', grant)
  if lease and (left > lease or left < 0) then
    redis.call('PEXPIRE', grant, lease)
  end
end

-- What is left of a grant, in ms.
local function left_of(grant, held)
  return math.max(math.min(redis.call('PTTL', grant), tonumber(string.match(held, '^%d+|(%d+)'))), 0)
end

-- A place before all who queue, for those who were given the lock before them and do not know theirs.
local function before_all(queue, now)
  local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
  return math.min(tonumber(head or now), now) - 1
end

-- Takes the neighbours of a head that is gone from the queue already, as far as they are of its inbox and its lease, out
-- of the queue. Returns the owners of all that are alive, and their number.
local function block(queue, owner, inbox, lease, now)
  local tail = '|' .. inbox .. '|' .. lease .. '|'
  local first, last = #owner + 1, #owner + #tail
  local neighbours = redis.call('ZRANGE', queue, 0, 0) -- most often the next one is of another process
  if not neighbours[1] or string.sub(neighbours[1], first, last) ~= tail then
    return owner, 1
  end
  neighbours = redis.call('ZRANGE', queue, 0, BLOCK_AT_MOST - 2, 'WITHSCORES')
  local owners, taken = { owner }, 0
  for i = 1, #neighbours, 2 do
    local member = neighbours[i]
    if string.sub(member, first, last) ~= tail then
      break
    end
    taken = taken + 1
    if neighbours[i + 1] + string.sub(member, last + 1) * 1000 > now then
      owners[#owners + 1] = string.sub(member, 1, #owner)
    end
  end
  redis.call('ZREMRANGEBYRANK', queue, 0, taken - 1)
  return table.concat(owners, ' '), #owners
end

-- Gives the lock to the first waiter that is alive and can be told, with its neighbours, or deletes it. Returns the owners
-- it gave it to. `head` is what ZPOPMIN has just returned: that, or DEL, is the first write, after which Redis lets a
-- script grow even when it is out of memory.
local function hand_on(head, grant, queue, fence, floor, claim)
  local now
  while head[1] do
    if not now then
      local time = redis.call('TIME')
      now = time[1] * 1000000 + time[2]
    end
    local owner, inbox, lease, wait = string.match(head[1], MEMBER)
    if not owner then
      -- Free, but for those who hear of it. Not heard is no harm: they try now and then.
      redis.pcall('PUBLISH', string.sub(head[1], 8), 'free|' .. grant)
    elseif head[2] + wait * 1000 > now then
      local owners, count = block(queue, owner, inbox, lease, now)
      local token = next_token(fence, floor, count)
      local given = string.format('%.0f|', token) .. lease .. '|' .. inbox .. '|' .. owners
      redis.call('SET', grant, given, 'PX', math.min(tonumber(lease), tonumber(claim)))
      -- Nobody may be left behind holding a lock it was not told of: not heard is not given.
      local heard = redis.pcall('PUBLISH', inbox, given .. '|' .. grant)
      if type(heard) == 'number' and heard > 0 then
        return owners
      end
    end
    head = redis.call('ZPOPMIN', queue)
  end
  redis.call('DEL', grant)
  return nil
end

