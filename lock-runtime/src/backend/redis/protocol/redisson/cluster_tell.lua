-- Sends the message with which Redisson announces a free lock in a Redis Cluster, so that all waiters try again. Like
-- Redisson, sends the message on a shard channel if the server has shard channels (Redis 7.0 or later).
local function tell(lock)
  if type(redis.pcall('SPUBLISH', channel(lock), '0')) == 'table' then -- an error: the server does not know the command
    redis.pcall('PUBLISH', channel(lock), '0')
  end
end
