-- What nobody has of each limit, and who has the rest: throng_core::limits::shared::Pool as a script, to the letter. Numbers are
-- doubles; limits are at most 2^53.
--
-- KEYS: gateways (a hash: "seen number"), pool (a hash: epoch, opens, last), short (a hash: "since until"), then one hash for each
-- scope, in which each gateway has "requests tokens concurrent yielded".
-- ARGV: the gateway, its question's number, 1 if it is the last one, the time in milliseconds or '' for the server's, then for each
-- scope its name, limits (-1: none), keep, need and want, three numbers each, and 1 if the gateway keeps no more than it uses.
local LEASE, HOLD, GAP, SETTLING, PRESENT, SHORT, YIELDED = 5000, 66000, 1500, 2000, 1000, 2000, 150
local MAX_SHORT, FORGET_S, N_FIELDS = 256, 180, 14

local function words(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do found[#found + 1] = word end
  return found
end

local function whole(number) return string.format('%.0f', number) end

local me, number, is_last = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local now = tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local pool = redis.call('HMGET', KEYS[2], 'epoch', 'opens', 'last')
local epoch, opens, last = tonumber(pool[1]) or 0, tonumber(pool[2]) or 0, tonumber(pool[3]) or 0
now = math.max(now, last)

local gateways, flat = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  local value = words(flat[i + 1])
  gateways[flat[i]] = { seen = tonumber(value[1]), number = tonumber(value[2]) }
end
if gateways[me] and number <= gateways[me].number then return false end

if now - last > GAP or epoch == 0 then
  epoch, opens = now, now + SETTLING
end
redis.call('HSET', KEYS[2], 'epoch', whole(epoch), 'opens', whole(opens), 'last', whole(now))

local n_gateways = 0
gateways[me] = { seen = is_last and math.max(now - LEASE, 0) or now, number = number }
for id, gateway in pairs(gateways) do
  if id ~= me and now - gateway.seen >= HOLD then
    redis.call('HDEL', KEYS[1], id)
    gateways[id] = nil
  elseif now - gateway.seen < LEASE then
    n_gateways = n_gateways + 1
  end
end
redis.call('HSET', KEYS[1], me, whole(gateways[me].seen) .. ' ' .. whole(number))

local is_settling = now < opens
local numbers = { 0, epoch, is_settling and 1 or 0 }

for entry = 0, #KEYS - 4 do
  local at, key = 4 + entry * N_FIELDS, KEYS[4 + entry]
  local name, yields = ARGV[at + 1], ARGV[at + 14] == '1'
  local since, is_short = math.huge, false
  local mark = redis.call('HGET', KEYS[3], name)
  if mark then
    local value = words(mark)
    if now < tonumber(value[2]) then since, is_short = tonumber(value[1]), true end
  end
  local others, is_final, is_alone = { 0, 0, 0 }, is_short, true
  local shares = redis.call('HGETALL', key)
  for i = 1, #shares, 2 do
    local id = shares[i]
    local gateway = gateways[id]
    if not gateway then
      redis.call('HDEL', key, id)
    elseif id ~= me then
      is_alone = false
      local share, age = words(shares[i + 1]), now - gateway.seen
      local requests, tokens, concurrent = tonumber(share[1]), tonumber(share[2]), tonumber(share[3])
      others[1], others[2] = others[1] + requests, others[2] + tokens
      -- Requests end with their gateway.
      if age < LEASE then others[3] = others[3] + concurrent end
      local has_nothing = requests == 0 and tokens == 0 and concurrent == 0
      local has_yielded = tonumber(share[4]) >= math.max(since, now - YIELDED)
      is_final = is_final and (age >= PRESENT or has_nothing or has_yielded)
    end
  end
  local share, free_after, is_lacking = { 0, 0, 0 }, { 0, 0, 0 }, false
  for k = 1, 3 do
    local limit = tonumber(ARGV[at + 1 + k])
    if limit >= 0 then
      local keep, need, want =
        tonumber(ARGV[at + 4 + k]), tonumber(ARGV[at + 7 + k]), tonumber(ARGV[at + 10 + k])
      local free = is_settling and 0 or math.max(limit - others[k] - keep, 0)
      local needed = math.min(need, free)
      local wanted = is_short and 0 or math.min(want, free - needed)
      is_lacking = is_lacking or needed < need
      share[k] = keep + needed + wanted
      free_after[k] = free - needed - wanted
    end
  end
  local yielded = yields and now or 0
  redis.call('HSET', key, me,
    whole(share[1]) .. ' ' .. whole(share[2]) .. ' ' .. whole(share[3]) .. ' ' .. whole(yielded))
  redis.call('EXPIRE', key, FORGET_S)
  if is_lacking and not is_settling then
    local from = is_short and since or now
    redis.call('HSET', KEYS[3], name, whole(from) .. ' ' .. whole(now + SHORT))
  end
  for k = 1, 3 do numbers[#numbers + 1] = share[k] end
  for k = 1, 3 do numbers[#numbers + 1] = free_after[k] end
  numbers[#numbers + 1] = (not is_settling and (is_final or is_alone)) and 1 or 0
end

local short, marks = {}, redis.call('HGETALL', KEYS[3])
for i = 1, #marks, 2 do
  if now >= tonumber(words(marks[i + 1])[2]) then
    redis.call('HDEL', KEYS[3], marks[i])
  elseif #short < MAX_SHORT then
    short[#short + 1] = marks[i]
  end
end
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], FORGET_S) end
numbers[1] = n_gateways
return { numbers, short }
