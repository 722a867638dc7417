-- Removes the entry by which a session asked to be woken, because none of its callers waits without a place any longer.
--
-- KEYS: queue
-- ARGV: 1 `notify|session_id`
return redis.call('ZREM', KEYS[1], ARGV[1])
