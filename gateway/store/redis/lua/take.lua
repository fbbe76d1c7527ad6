#!lua
-- take: takes from several buckets, or from none if one of them has not enough.
--
-- KEYS  the buckets; behind them, perhaps, what was paid for before
-- ARGV  the cost, how long a payment is remembered (ms), then for each bucket its kind, what it holds, and microseconds:
--       rate: a string of when all that was taken is back (µs); one comes back in so many
--       day, week: a string of the end of the window (µs) and what was taken in it; a window is so long
-- OK; OK 0 0: it was paid for; OK and the place of the bucket that has to be waited for longest, and for how long (µs; -1:
-- it never gives so much at once).
local cost, n = ARGV[1] + 0, (#ARGV - 2) / 3
if #KEYS > n and redis.call('SET', KEYS[#KEYS], '1', 'NX', 'PX', ARGV[2]) then return {'OK', 0, 0} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local worst, longest, values, lasts = 0, 0, {}, {}
for i = 1, n do
  local kind, most, micros = ARGV[3 * i], ARGV[3 * i + 1] + 0, ARGV[3 * i + 2] + 0
  local stored, wait = redis.call('GET', KEYS[i]), 0
  if kind == 'rate' then
    -- Not later than it can be: the bucket may have been larger, or the clock ahead.
    local back, full = math.max(tonumber(stored or 0) or 0, now), now + most * micros
    if back > full then
      back = full
      redis.call('SET', KEYS[i], string.format('%.0f', full), 'PX', string.format('%.0f', math.ceil(most * micros / 1000) + 1))
    end
    wait = back + (cost - most) * micros - now
    local after = back + cost * micros
    values[i], lasts[i] = string.format('%.0f', after), after - now
  else
    local first = kind == 'week' and 345600000000 or 0
    local ends = now - (now - first) % micros + micros
    local known, taken = string.match(stored or '', '^(%d+) (%d+)$')
    taken = known and known + 0 >= ends and taken + 0 or 0
    if taken + cost > most then wait = ends - now end
    values[i], lasts[i] = string.format('%.0f %.0f', ends, taken + cost), ends - now
  end
  if cost > most then wait = math.huge end
  if wait > longest then worst, longest = i, wait end
end
if worst > 0 then return {'OK', worst, longest < math.huge and longest or -1} end
for i = 1, n do
  redis.call('SET', KEYS[i], values[i], 'PX', string.format('%.0f', math.ceil(lasts[i] / 1000) + 1))
end
return {'OK'}
