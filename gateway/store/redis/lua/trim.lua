#!lua flags=allow-oom
-- trim: deletes the events of an unfinished stream before one that stays, to make room under the caps.
--
-- KEYS  record, log
-- ARGV  owner, epoch, stream, seq of the event that stays
-- OK, also when they are gone, or the stream is finished (its log goes whole). GONE, ENDED, FENCED; SEQ head: there is
-- no such event.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'h:' .. ARGV[3])
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
local head, seq = parse(row[4]), tonumber(ARGV[4])
if not head or head.finished then return 'OK' end
if seq > head.seq then return {'SEQ', head.seq} end
local gone = seq - 1 - head.floor
if gone <= 0 then return 'OK' end
local size, left = 0, head.seq - seq + 1
-- Before events that were lost there may be entries that count no more.
local entries = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', redis.call('XLEN', KEYS[2]) - left)
for _, entry in ipairs(entries) do size = size + #entry[2][2] end
redis.call('XTRIM', KEYS[2], 'MAXLEN', left)
head.floor, head.bytes = seq - 1, head.bytes - size
redis.call('HSET', KEYS[1], 'h:' .. ARGV[3], format(head))
redis.call('HINCRBY', KEYS[1], 'events', 0 - gone)
redis.call('HINCRBY', KEYS[1], 'bytes', 0 - size) -- not -0, which Redis can't read
return 'OK'
