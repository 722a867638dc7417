-- First part of an acquisition by a reader, or of permits. Lets the caller enter if no writer holds the lock, enough permits
-- are left, and nobody waits. Otherwise acquire_queue.lua continues. Uses next_token.lua and grant_next.lua.
--
-- KEYS and ARGV: see acquire_free.lua. The lease ends with the mode (see grant_next.lua). ARGV[7] is also given for a caller that does not
-- wait, if the answer to an earlier request was lost.
local arrived = redis.call('TIME')
arrived = arrived[1] * 1000000 + arrived[2]
if ARGV[6] ~= '' and arrived > tonumber(ARGV[6]) then
  return { 'late' } -- nothing was changed, because the caller no longer waits for this request
end
local seen = read(KEYS[1])
if seen == SHARED and ARGV[7] then
  local text, left = readers().find(KEYS[1], string.match(ARGV[1], '^[^|]*|[^|]*|(%x+)'), arrived)
  if text then
    -- An earlier request was carried out, so the caller is already inside.
    local place = math.min(before_all(KEYS[2], arrived), tonumber(ARGV[7]))
    return { 'held', text, left, string.format('%.0f', place) }
  end
end
if (not seen or seen == SHARED) and redis.call('EXISTS', KEYS[2]) == 0 and readers().fits(KEYS[1], ARGV[2]) then
  local token = next_token(KEYS[3], ARGV[3], string.match(ARGV[2], 'p(%d+)') or 1)
  readers().add(KEYS[1], token, ARGV[1], tonumber(string.match(ARGV[2], '^%d+')), '', arrived)
  return token -- granted, with the whole lease left
end

