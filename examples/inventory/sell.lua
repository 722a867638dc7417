-- Writes a sale: the remaining stock and the record of the sale, both or neither. KEYS: the keys of the stock, of the
-- list of records, and of the highest fencing token so far. ARGV: the remaining stock, the text of the record, and the
-- writer's fencing token ('' if the writer has none).
if ARGV[3] ~= '' then
  local highest = tonumber(redis.call('GET', KEYS[3]) or '0')
  if tonumber(ARGV[3]) < highest then
    return 0 -- a later holder of the lock has already written
  end
  redis.call('SET', KEYS[3], ARGV[3])
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[2], ARGV[2])
return 1
