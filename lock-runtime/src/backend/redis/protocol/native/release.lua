-- Second half of a release, after release_last.lua: somebody waits, so the lock is handed on.
grant_next(head, KEYS[1], KEYS[2], KEYS[4], KEYS[3], ARGV[2], ARGV[3])
return 1 -- released
