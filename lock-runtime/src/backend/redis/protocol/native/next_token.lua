-- Shared by the scripts that grant.

-- Takes the next `count` tokens and returns the first. A counter below `floor` (the server's time when the caller's
-- connection was made) may have been lost with the server's state. The current time is ahead of every token given
-- before, because tokens rise more slowly than one per microsecond. If the clock has been set back meanwhile, the
-- counter is ahead of it, and stays.
local function next_token(fence, floor, count)
  local token = redis.call('INCRBY', fence, count) - count + 1
  if token < tonumber(floor) then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    if now > token then
      token = now
      redis.call('SET', fence, string.format('%.0f', token + count - 1))
    end
  end
  return token
end

