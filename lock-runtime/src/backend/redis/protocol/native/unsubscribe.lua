-- Nobody waits without a queue in this process any more.
--
-- KEYS: queue
-- ARGV: 1 `notify|inbox`
return redis.call('ZREM', KEYS[1], ARGV[1])
