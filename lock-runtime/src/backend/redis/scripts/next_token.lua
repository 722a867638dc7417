-- Shared by the scripts that grant.

-- The next token. A counter below `floor` (the server's time when the caller's connection was made) may have been lost
-- with the server's state. The time now is ahead of every token given before, for tokens rise slower than one a
-- microsecond; should the clock have been set back meanwhile, the counter is ahead, and stands.
local function next_token(fence, floor)
  local token = redis.call('INCR', fence)
  if token < tonumber(floor) then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    if now > token then
      token = now
      redis.call('SET', fence, string.format('%.0f', token))
    end
  end
  return token
end

