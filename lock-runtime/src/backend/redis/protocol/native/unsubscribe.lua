-- Removes the queue entry because of which a session gets a message when the lock is free. Sent when the session no
-- longer has a caller that waits for this lock with the strategy `notify`.
--
-- KEYS: queue
--
-- ARGV: `notify|session_id`, the entry to remove
return redis.call('ZREM', KEYS[1], ARGV[1])
