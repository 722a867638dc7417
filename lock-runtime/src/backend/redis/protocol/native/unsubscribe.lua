-- Nobody waits without a queue in this process any more.
--
-- KEYS: queue
-- ARGV: 1 `notify|session_id`
return redis.call('ZREM', KEYS[1], ARGV[1])
