-- Writes a sale: what is left, and the record of the sale, both or none.
-- KEYS: stock, sales, fence. ARGV: what is left, the record, the fencing token or '' for a writer that has none.
if ARGV[3] ~= '' then
  local highest = tonumber(redis.call('GET', KEYS[3]) or '0')
  if tonumber(ARGV[3]) < highest then
    return 0 -- the writer was overtaken: its lock has been another's since
  end
  redis.call('SET', KEYS[3], ARGV[3])
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[2])
return 1
