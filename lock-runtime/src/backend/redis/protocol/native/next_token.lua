-- Shared by the scripts that grant.

-- The next tokens, so many at once: returns the first. A counter below `floor` (the server's time when the caller's
-- connection was made) may have been lost with the server's state. The time now is ahead of every token given before, for
-- tokens rise slower than one a microsecond; should the clock have been set back meanwhile, the counter is ahead, and
-- stands.
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

