-- Removes the queue entry by which a session asked to be woken. Sent when none of the session's callers waits for this
-- lock without a place any longer.
--
-- KEYS: queue
-- ARGV: 1 `notify|session_id`
return redis.call('ZREM', KEYS[1], ARGV[1])
