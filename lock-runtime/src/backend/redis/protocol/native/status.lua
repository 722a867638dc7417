-- KEYS: grant, queue
local held = redis.call('GET', KEYS[1])
local token, session_id, owner, others = string.match(held or '', '^(%d+)|%d+|([^|]*)|(%x+)(.*)$')
local _, more = string.gsub(session_id ~= '' and others or '', ' ', '') -- nobody is to come of what is only kept
-- How many queue; the token and the owner, the first ones of a block; what is left in ms; how many more the block has.
return { redis.call('ZCARD', KEYS[2]), token or false, owner or false, redis.call('PTTL', KEYS[1]), more }
