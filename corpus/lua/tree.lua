-- A search tree of Lua tables: filled in random order, looked up, walked. usage: tree.lua MIB
local count = tonumber(arg[1]) * 6000
local state = 12345
local function random()
  state = (state * 16807) % 2147483647
  return state
end
local root
local function add(key)
  local node = { key = key, text = 'node ' .. key }
  if not root then root = node return end
  local at = root
  while true do
    local side = key < at.key and 'left' or 'right'
    if not at[side] then at[side] = node return end
    at = at[side]
  end
end
for _ = 1, count do add(random()) end
local found, steps = 0, 0
for _ = 1, count / 2 do
  local key, at = random(), root
  while at do
    steps = steps + 1
    if at.key == key then found = found + 1 break end
    at = key < at.key and at.left or at.right
  end
end
print('looked up', found, steps)
local sum, stack, at = 0, {}, root
while at or #stack > 0 do
  while at do stack[#stack + 1], at = at, at.left end
  at = table.remove(stack)
  sum = (sum * 31 + at.key + #at.text) % 1000000007
  at = at.right
end
print('walked', sum)
