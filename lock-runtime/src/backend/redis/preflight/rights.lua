-- Runs commands that change nothing, and returns the error of each command, or '' if there is none. The user's rights
-- are checked before a command runs, so the errors show which rights are missing.
--
-- ARGV: for each command, the number of its parts (the name and the arguments), and then these parts

local errors, at = {}, 1
while ARGV[at] do
  local last = at + ARGV[at]
  local answer = redis.pcall(unpack(ARGV, at + 1, last))
  errors[#errors + 1] = type(answer) == 'table' and answer.err or ''
  at = last + 1
end
return errors
