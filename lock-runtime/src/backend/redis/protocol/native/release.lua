-- Second half of a release. release_last.lua has removed the first entry, `head`, from the queue. This half grants the
-- lock to the first waiter that is alive and reachable, beginning with `head`.
grant_next(head, KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3])
return 1 -- released
