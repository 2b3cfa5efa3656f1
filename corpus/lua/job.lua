-- A LuaJIT program: an array of C numbers, tables and strings, garbage, coroutines, compiled callbacks. usage: job.lua MIB
local ffi, bit = require 'ffi', require 'bit'
ffi.cdef [[
void qsort(void *base, size_t n, size_t size, int (*less)(const void *, const void *));
]]
local mib = tonumber(arg[1])
local function mix(x)
  x = bit.bxor(x, bit.lshift(x, 13))
  x = bit.bxor(x, bit.rshift(x, 17))
  return bit.bxor(x, bit.lshift(x, 5))
end
local function digest(a, n)
  local h = 1
  for i = 0, n - 1 do h = bit.tobit(bit.bxor(bit.rol(h, 5), a[i])) end
  return bit.tohex(h)
end

local n = mib * 120000
local words = ffi.new('int32_t[?]', n)
local x = 12345
for i = 0, n - 1 do x = mix(x); words[i] = x end
print('filled', n, digest(words, n))
local objects = {}
for i = 1, mib * 3000 do objects[i] = { id = i, name = 'object ' .. i, next = objects[bit.rshift(i, 1)] } end
local sum = 0
for _, o in ipairs(objects) do sum = sum + #o.name + (o.next and o.next.id or 0) end
print('objects', #objects, sum)
local garbage = 0
for round = 1, 6 do
  local parts = {}
  for i = 1, mib * 100 do parts[i] = string.rep(string.char(97 + i % 26), 64) .. i .. round end
  garbage = garbage + #table.concat(parts)
end
print('garbage', garbage)
local threads, steps = {}, 0
for k = 1, 2000 do
  threads[k] = coroutine.wrap(function(first)
    local total = first
    while true do total = total + coroutine.yield(total) end
  end)
end
for round = 1, 50 do for k = 1, #threads do steps = steps + threads[k](round) % 7 end end
print('coroutines', steps)
local less = ffi.cast('int (*)(const void *, const void *)', function(a, b)
  local p, q = ffi.cast('const int32_t *', a)[0], ffi.cast('const int32_t *', b)[0]
  return p < q and -1 or (p > q and 1 or 0)
end)
ffi.C.qsort(words, math.min(n, 200000), 4, less)
print('sorted', digest(words, math.min(n, 200000)))
collectgarbage()
print('again', digest(words, n), #objects)
