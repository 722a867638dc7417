-- Reads the holder of a lock.
--
-- KEYS: grant, queue
local held = redis.call('GET', KEYS[1])
local token, session_id, owner, others = string.match(held or '', '^(%d+)|%d+|([^|]*)|(%x+)(.*)$')
local _, more = string.gsub(session_id ~= '' and others or '', ' ', '') -- a retained grant has no members left
-- Returns the number of entries in the queue; the token and the owner, in a cohort those of its first member; the time
-- left of the grant in ms; and the number of further members of the cohort.
return { redis.call('ZCARD', KEYS[2]), token or false, owner or false, redis.call('PTTL', KEYS[1]), more }
