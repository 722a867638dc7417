-- Reads the first waiters in the queue of a lock, for people. Returns the server's time in µs, and the entries with
-- their places.
--
-- KEYS: queue
--
-- ARGV: the number of entries to read
local time = redis.call('TIME')
local found = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
local entries = {}
for i = 1, #found, 2 do
  entries[#entries + 1] = { found[i], found[i + 1] }
end
return { string.format('%.0f', time[1] * 1000000 + time[2]), entries }
