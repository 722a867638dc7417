-- Sends the message with which Redisson announces a free lock, so that all waiters try again.
local function tell(counter)
  redis.pcall('PUBLISH', 'redisson_lock__channel' .. string.sub(counter, #'redisson_lock_token' + 1), '0')
end
