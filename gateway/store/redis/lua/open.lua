#!lua
-- open: makes a stream and its recorded requests, and appends event 1 if there is one (law 1: from here on the
-- requests' outcomes live in the log).
--
-- KEYS  record, log
-- ARGV  owner, epoch, stream, ttl (ms), eighth, purge interval (ms), most events, most bytes, print,
--       '1' if there is a first event, the event, then name-value pairs of requests
-- OK; the same again too, which writes the requests again.
-- GONE, ENDED, FENCED; EXISTS: the stream was opened otherwise; FULL: the caps are reached, and no finished stream can
-- make room.
local stream = ARGV[3]
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'kept', 'due', 'events', 'bytes', 'h:' .. stream)
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
local head = parse(row[8])
if head and head.finished and head.till <= now() then
  -- Expired, and not purged yet: its name is free.
  redis.call('UNLINK', KEYS[2])
  redis.call('HDEL', KEYS[1], 'h:' .. stream)
  row[6], row[7], head = row[6] - head.seq + head.floor, row[7] - head.bytes, nil
  redis.call('HSET', KEYS[1], 'events', row[6], 'bytes', row[7])
end
if head then
  if head.opener ~= ARGV[2] or head.print ~= ARGV[9] then return {'EXISTS'} end
else
  local first, size = ARGV[10] == '1', string.len(ARGV[11])
  local events, bytes, due = tonumber(row[6]), tonumber(row[7]), tonumber(row[5])
  local function over() return events + 1 > tonumber(ARGV[7]) or bytes + size > tonumber(ARGV[8]) end
  -- Reading a whole record at each open would cost more the busier the session is.
  if due > 0 then
    local time = now()
    if time >= due + ARGV[6] or (over() and time >= due) then events, bytes = purge(time) end
  end
  if over() then
    events, bytes = room(1, size, tonumber(ARGV[7]), tonumber(ARGV[8]), events, bytes)
    if not events then return {'FULL'} end
  end
  head = {seq = 0, bytes = 0, epoch = ARGV[2], till = 0, floor = 0, opener = ARGV[2], print = ARGV[9], written = ''}
  if first then
    redis.call('XADD', KEYS[2], ARGV[2] .. '-1', 'd', ARGV[11])
    redis.call('PEXPIRE', KEYS[2], row[1] == 'live' and ARGV[4] or redis.call('PTTL', KEYS[1]))
    head.seq, head.bytes = 1, size
  end
  redis.call('HSET', KEYS[1], 'h:' .. stream, format(head), 'events', events + head.seq, 'bytes', bytes + head.bytes)
end
apply(12, math.floor((#ARGV - 11) / 2))
keep(row[1], row[4], ARGV[5], ARGV[4])
return 'OK'
