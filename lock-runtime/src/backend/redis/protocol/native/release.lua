-- Second half of a release. release_last.lua has removed the first entry, `head`, from the queue. This half grants the
-- lock to the first waiter that is alive and reachable, beginning with `head`. If readers held the lock, there is no `head`.
if head then
  grant_next(head, KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3])
else
  readers().beside(KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3], '', true)
end
return 1 -- released
