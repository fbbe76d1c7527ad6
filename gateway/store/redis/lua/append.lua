#!lua
-- append: events seq, seq + 1, … of a stream, and changes of the record in the same step.
--
-- KEYS  record, log
-- ARGV  owner, epoch, stream, ttl (ms), eighth, seq, the last event's seq (seq - 1 if there are none), replay ttl (ms)
--       to finish or '', most events, most bytes, reserve (bytes), the events, number of pairs, name-value pairs, names
--       to delete
-- OK, also for events that are there already; the changes are written again.
-- GONE, ENDED, FENCED; GONE 'no such stream'; SEQ head; FINISHED head; FULL: the caps are reached, and no finished
-- stream can make room. A finishing append within the reserve passes the caps: an answer always fits.
local call = redis.call
local field = 'h:' .. ARGV[3]
local row = call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'kept', 'due', 'events', 'bytes', field)
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
if not row[8] then return {'GONE', 'no such stream'} end
local text, held, epoch, till, floor, rest = string.match(row[8], '^(%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
local head, first, last, finished = text + 0, ARGV[6] + 0, ARGV[7] + 0, till ~= '0'
local finish = ARGV[8] ~= '' and not finished
if first > head + 1 or (finish and last < head) then return {'SEQ', head} end
local fresh = last > head
if fresh and finished then return {'FINISHED', head} end

local due, events, bytes, time = row[5], row[6], row[7], nil
local to = 12 + last - first -- the argument with the last event
if fresh then
  local size = 0
  for i = to - last + head + 1, to do size = size + #ARGV[i] end
  local function over() return events + last - head > ARGV[9] + 0 or bytes + size > ARGV[10] + 0 end
  if over() and due ~= '0' then
    time = now()
    if time >= due + 0 then events, bytes, due = purge(time) end
  end
  if over() then
    local left, left_bytes = room(last - head, size, ARGV[9] + 0, ARGV[10] + 0, events + 0, bytes + 0)
    if left then
      events, bytes = left, left_bytes
    elseif not (finish and size <= ARGV[11] + 0) then
      return {'FULL'}
    end
  end
  for i = head + 1, last - 1 do call('XADD', KEYS[2], ARGV[2] .. '-' .. i, 'd', ARGV[to - last + i]) end
  call('XADD', KEYS[2], ARGV[2] .. '-' .. ARGV[7], 'd', ARGV[to])
  if text == floor then call('PEXPIRE', KEYS[2], row[1] == 'live' and ARGV[4] or call('PTTL', KEYS[1])) end
  text, held, epoch = ARGV[7], held + size, ARGV[2]
  events, bytes = events + last - head, bytes + size
end
if finish then
  till = (time or now()) + ARGV[8]
  call('PEXPIRE', KEYS[2], ARGV[8])
  if due + 0 == 0 then call('HSET', KEYS[1], 'due', till) end
end
if fresh or finish then
  local after = text .. ' ' .. held .. ' ' .. epoch .. ' ' .. till .. ' ' .. floor .. rest
  call('HSET', KEYS[1], field, after, 'events', events, 'bytes', bytes)
end
if ARGV[to + 2] then apply(to + 2, ARGV[to + 1] + 0) end
keep(row[1], row[4], ARGV[5], ARGV[4])
return 'OK'
