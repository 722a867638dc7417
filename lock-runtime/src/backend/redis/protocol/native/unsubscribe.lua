-- Removes the queue entry by which a session asked to be woken. Sent when the session no longer has a caller that waits
-- for this lock with the strategy `notify`.
--
-- KEYS: queue
-- ARGV: 1 `notify|session_id`
return redis.call('ZREM', KEYS[1], ARGV[1])
