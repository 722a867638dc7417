-- Reads the holder of a lock, for people. Returns the number of entries in the queue, the grant, the time left of the
-- grant in ms (negative if the lock is free), and the server's time (seconds and µs).
--
-- KEYS: grant, queue
return {
  redis.call('ZCARD', KEYS[2]),
  redis.call('GET', KEYS[1]),
  redis.call('PTTL', KEYS[1]),
  redis.call('TIME'),
}
