-- Sends the message with which Redisson announces a free lock, so that all waiters try again.
local function tell(lock)
  redis.pcall('PUBLISH', channel(lock), '0')
end
