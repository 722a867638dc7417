-- Computes the fencing token of a new grant. Shared by the scripts that grant locks.

-- Takes the next `count` tokens and returns the first. `floor`, the token floor, is the server's time in µs when the
-- caller's connection was made. If the counter is below the floor, the server may have lost its state and the old
-- counter, so the counter continues from the current time in µs. That time is greater than every token issued before,
-- because the counter rises by less than one per microsecond. If the clock has been set back since the connection was
-- made, a counter below the floor may be greater than the current time. The tokens then continue from the counter.
--
-- If another server can replace this server, `floor` is greater than any time, so that each token is at least the
-- current time. A replaced server that becomes the primary again lacks the grants of its successor, but its next token
-- is still higher than the tokens of those grants.
local function next_token(fence, floor, count)
  local token = redis.call('INCRBY', fence, count) - count + 1
  if token < tonumber(floor) then
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    if now > token then
      token = now
      redis.call('SET', fence, string.format('%.0f', token + count - 1))
    end
  end
  return token
end

