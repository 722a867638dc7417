-- Takes several locks if each of them is free and waited for by nobody, else none of them.
--
-- KEYS: fence, then grant and queue of each lock
-- ARGV: 1 lease in ms, 2 floor, 3 not after (server time in µs, '' without limit), then for each lock
--       `lease|inbox|owner`, what its grant says after the token

if ARGV[3] ~= '' then
  local time = redis.call('TIME')
  if time[1] * 1000000 + time[2] > tonumber(ARGV[3]) then
    return 0 -- late, and nothing was changed: the caller has given this request up
  end
end
for i = 2, #KEYS, 2 do
  if redis.call('EXISTS', KEYS[i], KEYS[i + 1]) > 0 then
    return i / 2 -- the number of the first lock that is not free
  end
end
local tokens = {}
for i = 2, #KEYS, 2 do
  local token = next_token(KEYS[1], ARGV[2])
  redis.call('SET', KEYS[i], string.format('%.0f|', token) .. ARGV[3 + i / 2], 'PX', ARGV[1])
  tokens[i / 2] = token
end
return tokens -- inside all of them, for the whole lease
