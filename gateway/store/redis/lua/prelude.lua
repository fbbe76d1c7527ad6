-- What the session functions share. It is put before each of them when they are loaded.
--
-- KEYS[1] is the record. Replies are OK, or arrays that begin with OK or with the reason of the refusal.
-- A log that is no key of the call may be on another node, while its slot moves: there the call is broken off, and made
-- again. So what a log needs comes before what says in the record that it was done.
-- A head (`h:<stream>`) is the text
--   seq bytes epoch till floor opener print [w]
-- where `bytes` is what the log holds, `epoch` that of the last event, `till` the time in ms at which a finished stream
-- is forgotten (0: it is not finished), `opener` the epoch that opened it, `print` the checksum of what it was opened
-- with, and `w` says that it was written whole to its client. Events up to `floor` were trimmed or lost, and count no
-- more: a stream counts `seq - floor` events. (Where some were lost there may be entries before them still.)
-- A number that becomes text costs Redis as much as a lookup: what can stay text does. (Lua writes integers out plainly
-- below 10^14: times in ms are.)
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What Redis calls its data, by which one that took over, or was started anew, is known; '' where that is not said.
local function history()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%w+)') or ''
end

local function parse(text)
  if not text then return nil end
  local seq, bytes, epoch, till, floor, opener, print, written =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  return {
    seq = seq + 0, bytes = bytes + 0, epoch = epoch, till = till + 0, finished = till ~= '0', floor = floor + 0,
    opener = opener, print = print, written = written,
  }
end

local function format(head)
  return head.seq .. ' ' .. head.bytes .. ' ' .. head.epoch .. ' ' .. head.till .. ' ' .. head.floor .. ' ' ..
    head.opener .. ' ' .. head.print .. head.written
end

local function log_of(stream) return string.sub(KEYS[1], 1, -2) .. 'l:' .. stream end

-- Deletes the record and its logs.
local function wipe()
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, 2) == 'h:' then redis.call('UNLINK', log_of(string.sub(name, 3))) end
  end
  redis.call('DEL', KEYS[1])
end

-- The reason why this owner at this epoch may not write, or nil.
local function refusal(state, owner, epoch)
  if not state then return {'GONE'} end
  if state == 'ended' then return {'ENDED'} end
  if owner ~= ARGV[1] or epoch ~= ARGV[2] then return {'FENCED'} end
  return nil
end

-- Every write keeps the record and its unfinished logs, but a young record expires as it is. `eighth` numbers the
-- eighths of the idle time on the caller's clock, `kept` is the one in which it was done last: once in each will do.
local function keep(state, kept, eighth, ttl)
  if state ~= 'live' or kept == eighth then return end
  redis.call('PEXPIRE', KEYS[1], ttl)
  local row = redis.call('HGETALL', KEYS[1])
  for i = 1, #row, 2 do
    if string.sub(row[i], 1, 2) == 'h:' and not parse(row[i + 1]).finished then
      redis.call('PEXPIRE', log_of(string.sub(row[i], 3)), ttl)
    end
  end
  redis.call('HSET', KEYS[1], 'kept', eighth)
end

-- Forgets the finished streams whose time has come; `due` becomes the earliest time of those that remain.
local function purge(time)
  local row = redis.call('HGETALL', KEYS[1])
  local due, events, bytes = 0, 0, 0
  for i = 1, #row, 2 do
    if string.sub(row[i], 1, 2) == 'h:' then
      local head = parse(row[i + 1])
      if head.finished and head.till <= time then
        redis.call('UNLINK', log_of(string.sub(row[i], 3)))
        redis.call('HDEL', KEYS[1], row[i])
      else
        events, bytes = events + head.seq - head.floor, bytes + head.bytes
        if head.finished and (due == 0 or head.till < due) then due = head.till end
      end
    end
  end
  redis.call('HSET', KEYS[1], 'due', due, 'events', events, 'bytes', bytes)
  return events, bytes, due
end

-- Whether `events` of `bytes` are within the caps once finished streams have made room: first those that were written
-- whole, then the others, the one first that would expire first; never one that is not finished, and none in vain.
-- Then what the record holds without them.
local function room(events, bytes, most, most_bytes, held, held_bytes)
  local row = redis.call('HGETALL', KEYS[1])
  local done = {}
  for i = 1, #row, 2 do
    if string.sub(row[i], 1, 2) == 'h:' then
      local head = parse(row[i + 1])
      if head.finished then
        head.field = row[i]
        done[#done + 1] = head
      end
    end
  end
  table.sort(done, function(a, b)
    if a.written ~= b.written then return a.written ~= '' end
    if a.till ~= b.till then return a.till < b.till end
    return a.field < b.field
  end)
  local gone = 0
  while gone < #done and (held + events > most or held_bytes + bytes > most_bytes) do
    gone = gone + 1
    held, held_bytes = held - done[gone].seq + done[gone].floor, held_bytes - done[gone].bytes
  end
  if held + events > most or held_bytes + bytes > most_bytes then return nil end
  for i = 1, gone do redis.call('UNLINK', log_of(string.sub(done[i].field, 3))) end
  for i = 1, gone do redis.call('HDEL', KEYS[1], done[i].field) end
  redis.call('HSET', KEYS[1], 'events', held, 'bytes', held_bytes)
  return held, held_bytes
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
