#!lua
-- append: events seq, seq + 1, … of a stream, and changes of the record in the same step.
--
-- KEYS  record, log
-- ARGV  owner, epoch, stream, ttl (ms), step (ms), seq, '1' to finish, replay ttl (ms), most events, most bytes,
--       reserve (bytes), number of events, the events, number of pairs, name-value pairs, names to delete
-- OK, also for events that are there already; the changes are written again.
-- GONE, ENDED, FENCED; GONE 'no such stream'; SEQ head; FINISHED head; FULL: the caps are reached. A finishing
-- append within the reserve passes the caps (CLUSTER §4).
local stream, seq, finish, count = ARGV[3], tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[12])
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'kept', 'due', 'events', 'bytes', 'h:' .. stream)
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
local head = parse(row[8])
if not head then return {'GONE', 'no such stream'} end
local last = seq + count - 1
if seq > head.seq + 1 or (finish and not head.finished and last < head.seq) then return {'SEQ', head.seq} end

local time = now()
local events, bytes, due = tonumber(row[6]), tonumber(row[7]), row[5]
local fresh, size = last - head.seq, 0
if fresh > 0 then
  if head.finished then return {'FINISHED', head.seq} end
  for i = 13 + count - fresh, 12 + count do size = size + string.len(ARGV[i]) end
  local function over() return events + fresh > tonumber(ARGV[9]) or bytes + size > tonumber(ARGV[10]) end
  if over() and tonumber(due) > 0 and time >= tonumber(due) then
    events, bytes = purge(time)
    due = redis.call('HGET', KEYS[1], 'due')
  end
  if over() and not (finish and size <= tonumber(ARGV[11])) then return {'FULL'} end
  for i = 1, fresh do
    redis.call('XADD', KEYS[2], ARGV[2] .. '-' .. head.seq + i, 'd', ARGV[12 + count - fresh + i])
  end
  if head.events == 0 then
    redis.call('PEXPIRE', KEYS[2], row[1] == 'live' and ARGV[4] or redis.call('PTTL', KEYS[1]))
  end
  head.seq, head.epoch, head.events, head.bytes = last, ARGV[2], head.events + fresh, head.bytes + size
else
  fresh = 0
end
if finish and not head.finished then
  head.finished, head.till = true, time + tonumber(ARGV[8])
  redis.call('PEXPIRE', KEYS[2], ARGV[8])
  if due == '0' then due = head.till end
end
redis.call('HSET', KEYS[1], 'h:' .. stream, format(head), 'events', events + fresh,
  'bytes', bytes + size, 'due', due)
apply(14 + count, tonumber(ARGV[13 + count]))
keep(row[1], row[4], time, ARGV[4], tonumber(ARGV[5]))
return {'OK'}
