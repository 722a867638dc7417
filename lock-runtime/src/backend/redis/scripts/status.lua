-- KEYS: grant, queue
local held = redis.call('GET', KEYS[1])
local token, owners = string.match(held or '', '^(%d+)|%d+|[^|]*|(.+)$')
local _, others = string.gsub(owners or '', ' ', '')
-- How many queue; the token and the owner, the first ones of a block; what is left in ms; how many more the block has.
return {
  redis.call('ZCARD', KEYS[2]), token or false, owners and string.match(owners, '^%x+') or false,
  redis.call('PTTL', KEYS[1]), others
}
