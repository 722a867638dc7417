-- KEYS: grant, queue
local held = redis.call('GET', KEYS[1])
local token, owner = string.match(held or '', '^(%d+)|%d+|[^|]*|(%x+)')
return { redis.call('ZCARD', KEYS[2]), token or false, owner or false, redis.call('PTTL', KEYS[1]) }
