-- KEYS: grant, queue
local held = redis.call('GET', KEYS[1])
local token, session_id, owner, others = string.match(held or '', '^(%d+)|%d+|([^|]*)|(%x+)(.*)$')
local _, more = string.gsub(session_id ~= '' and others or '', ' ', '') -- a retained grant has no members left
-- The number of entries in the queue; the token and the owner, the first ones of a cohort; the time left in ms; the
-- number of further members of the cohort.
return { redis.call('ZCARD', KEYS[2]), token or false, owner or false, redis.call('PTTL', KEYS[1]), more }
