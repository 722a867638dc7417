-- Reads the holder of a lock. Returns the same fields as native/status.lua. The grant contains only the owner and, for
-- a lock of this library, the token. As in the native layout, only a retained lock has no session.
--
-- KEYS: lock
local _, owner, token = ours(KEYS[1])
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  owner = owner or string.match(field, '^(%x+%-%x+%-%x+%-%x+%-%x+):')
end
owner = owner and string.gsub(string.gsub(owner, '^(%x+%-%x+%-)8', '%14'), '%-', '')
local held = owner and (token == '0' and '|||' or (token or '') .. '||-|') .. owner
return { 0, held or false, redis.call('PTTL', KEYS[1]), redis.call('TIME'), {} }
