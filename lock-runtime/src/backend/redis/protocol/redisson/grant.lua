-- Shared by the scripts that grant, after next_token.lua and owner.lua.

-- Takes a free lock. If Redisson's fenced lock is in use too, its tokens and ours rise together.
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

