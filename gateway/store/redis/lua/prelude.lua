-- What the session functions share. It is put before each of them when they are loaded.
--
-- KEYS[1] is the record. Replies are arrays that begin with OK or with the reason of the refusal.
-- A head (`h:<stream>`) is the text
--   seq epoch floor finished events bytes until opener print
-- where `until` is the time in ms at which a finished stream is forgotten, `opener` the epoch that opened it and
-- `print` the checksum of what it was opened with. (Lua writes integers out plainly below 10^14: times in ms are.)
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function parse(text)
  if not text then return nil end
  local seq, epoch, floor, finished, events, bytes, till, opener, print =
    string.match(text, '^(%d+) (%d+) (%d+) (%d) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    seq = seq + 0, epoch = epoch, floor = floor, finished = finished == '1', events = events + 0, bytes = bytes + 0,
    till = till + 0, opener = opener, print = print,
  }
end

local function format(head)
  return head.seq .. ' ' .. head.epoch .. ' ' .. head.floor .. (head.finished and ' 1 ' or ' 0 ') .. head.events .. ' ' ..
    head.bytes .. ' ' .. head.till .. ' ' .. head.opener .. ' ' .. head.print
end

local function log_of(stream) return string.sub(KEYS[1], 1, -2) .. 'l:' .. stream end

-- The reason why this owner at this epoch may not write, or nil (CLUSTER §3).
local function refusal(state, owner, epoch)
  if not state then return {'GONE'} end
  if state == 'ended' then return {'ENDED'} end
  if owner ~= ARGV[1] or epoch ~= ARGV[2] then return {'FENCED'} end
  return nil
end

-- Every write keeps the record and its unfinished logs, but a young record expires as it is. `kept` is when that was
-- done last: an eighth of the idle time may pass in between.
local function keep(state, kept, time, ttl, step)
  if state ~= 'live' or time - tonumber(kept or '0') < step then return end
  redis.call('PEXPIRE', KEYS[1], ttl)
  local row = redis.call('HGETALL', KEYS[1])
  for i = 1, #row, 2 do
    if string.sub(row[i], 1, 2) == 'h:' and not parse(row[i + 1]).finished then
      redis.call('PEXPIRE', log_of(string.sub(row[i], 3)), ttl)
    end
  end
  redis.call('HSET', KEYS[1], 'kept', time)
end

-- Forgets the finished streams whose time has come; `due` becomes the earliest time of those that remain.
local function purge(time)
  local row = redis.call('HGETALL', KEYS[1])
  local due, events, bytes = 0, 0, 0
  for i = 1, #row, 2 do
    if string.sub(row[i], 1, 2) == 'h:' then
      local head = parse(row[i + 1])
      if head.finished and head.till <= time then
        redis.call('HDEL', KEYS[1], row[i])
        redis.call('UNLINK', log_of(string.sub(row[i], 3)))
      else
        events, bytes = events + head.events, bytes + head.bytes
        if head.finished and (due == 0 or head.till < due) then due = head.till end
      end
    end
  end
  redis.call('HSET', KEYS[1], 'due', due, 'events', events, 'bytes', bytes)
  return events, bytes
end

-- Writes `count` name-value pairs from ARGV[at] on, then deletes the names that follow to the end.
local function apply(at, count)
  local i = at
  for _ = 1, count do
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    i = i + 2
  end
  while ARGV[i] do
    redis.call('HDEL', KEYS[1], ARGV[i])
    i = i + 1
  end
end
