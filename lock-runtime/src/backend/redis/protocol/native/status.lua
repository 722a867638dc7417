-- Reads the holders of a lock, for people. Returns the number of entries in the queue, the grant, the time left of the
-- grant in ms (negative if the lock is free), the server's time (seconds and µs), and the other grants, if readers hold the
-- lock, each with its time left.
--
-- KEYS: grant, queue
local time = redis.call('TIME')
local held, left, others = redis.pcall('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), {}
if type(held) == 'table' then
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  held = false
  for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, 999)) do
    local deadline, grant = string.match(member, '^(%d+)%??|(.*)$')
    local rest = (deadline or 0) - now
    if rest > 0 and held then
      others[#others + 1] = { grant, rest }
    elseif rest > 0 then
      held, left = grant, rest
    end
  end
end
return { redis.call('ZCARD', KEYS[2]), held, left, time, others }
