-- Removes a session's marker: nobody in its process waits without a place in the queue.
--
-- KEYS: queue
-- ARGV: 1 `notify|session_id`
return redis.call('ZREM', KEYS[1], ARGV[1])
