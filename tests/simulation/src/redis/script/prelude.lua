-- Prepares the environment of scripts. The arguments are three functions of the server, and the log levels. The results
-- are the environment, the table of the scripts' globals, and the function that runs a script.
local send, sha1hex, located, log_levels = ...

-- Returns a read-only view of a library.
local function read_only(library)
  return setmetatable({}, {
    __index = library,
    __newindex = function()
      error('Attempt to modify a readonly table', 2)
    end,
    __metatable = false,
  })
end

local function pick(from, names)
  local picked = {}
  for name in string.gmatch(names, '%w+') do
    picked[name] = from[name]
  end
  return picked
end

local redis = {}

function redis.call(...)
  local reply, failure = send(...)
  if failure then
    error(failure, 0)
  end
  return reply
end

function redis.pcall(...)
  local reply, failure = send(...)
  if failure then
    return failure
  end
  return reply
end

function redis.status_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  return { ok = text }
end

function redis.error_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  text = string.gsub(text, '^%-', '')
  text = string.gsub(string.gsub(text, '^[\r\n]+', ''), '[\r\n]+$', '')
  -- In a text of several words, the first word is the error code. A text of a single word has no error code.
  if not string.find(text, ' ', 1, true) then
    text = 'ERR ' .. text
  end
  return { err = text }
end

function redis.sha1hex(...)
  if select('#', ...) ~= 1 then
    error({ err = 'ERR wrong number of arguments' }, 0)
  end
  return sha1hex((...))
end

function redis.log(...)
  if select('#', ...) < 2 then
    error({ err = 'ERR redis.log() requires two arguments or more.' }, 0)
  end
end

function redis.replicate_commands()
  return true
end

for name, level in pairs(log_levels) do
  redis[name] = level
end

local globals = pick(_G, 'assert error getmetatable ipairs next pairs pcall rawequal rawget rawset select setmetatable '
  .. 'tonumber tostring type unpack xpcall')
globals._VERSION = _VERSION
globals.redis = read_only(redis)
globals.string = read_only(pick(string, 'byte char find format gmatch gsub len lower match rep reverse sub upper'))
globals.table = read_only(pick(table, 'concat insert maxn remove sort getn foreach foreachi'))
globals.math = read_only(pick(math, 'abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp huge ldexp log log10 '
  .. 'max min mod modf pi pow rad sin sinh sqrt tan tanh'))
setmetatable(globals, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})
local environment = read_only(globals)
globals._G = environment

-- Turns any error into a table, and adds the number of the line at which the error arose.
local function on_error(failure)
  if type(failure) ~= 'table' then
    failure = { err = 'ERR ' .. tostring(failure) }
  end
  failure.line = located()
  return failure
end

local function run(script)
  return xpcall(script, on_error)
end

return environment, globals, run
