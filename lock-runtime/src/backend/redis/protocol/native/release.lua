-- Second half of a release. release_last.lua has found a queue entry, so the lock is handed on to the next waiter.
grant_next(head, KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3])
return 1 -- released
