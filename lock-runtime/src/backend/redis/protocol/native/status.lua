-- Reads the holder of a lock.
--
-- KEYS: grant, queue
local held = redis.call('GET', KEYS[1])
local token, session_id, owner, others = string.match(held or '', '^(%d+)|%d+|([^|]*)|(%x+)(.*)$')
local _, more = string.gsub(session_id ~= '' and others or '', ' ', '') -- a retained grant has no members left
-- Returns the number of entries in the queue; the token and the owner of the grant's first member, or false if there is
-- none; the time left of the grant in ms, negative if the lock is free; and the number of the grant's other members.
return { redis.call('ZCARD', KEYS[2]), token or false, owner or false, redis.call('PTTL', KEYS[1]), more }
