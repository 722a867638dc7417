-- Shared by the scripts that grant locks. Uses functions of next_token.lua and owner.lua, so each script includes this
-- file after these two.

-- Takes a free lock. If Redisson's fenced lock of the same name was ever used, `counter` stores the newest token of
-- that lock. The new token is then higher than both `counter` and `fence`, and is stored in both.
local function take(lock, counter, fence, owner, lease, floor)
  local token = next_token(fence, floor, 1)
  local theirs = tonumber(redis.call('GET', counter) or '')
  if theirs then
    if token <= theirs then
      token = theirs + 1
      redis.call('SET', fence, string.format('%.0f', token))
    end
    redis.call('SET', counter, string.format('%.0f', token), 'KEEPTTL')
  end
  redis.call('HSET', lock, string.format('%s:%.0f', uuid(owner), token), lease)
  redis.call('PEXPIRE', lock, lease)
  return token
end

