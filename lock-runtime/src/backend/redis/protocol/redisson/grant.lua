-- Shared by the scripts that grant locks. Uses functions of next_token.lua and owner.lua, so each script includes this
-- file after these two.

-- Takes a free lock. If Redisson's fenced lock of the same name has been used, Redisson has stored a token counter for
-- it. In this case, the new token is higher than the values of this counter and of our fence, and both are set to the
-- new token.
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

