#!lua flags=allow-oom
-- drop: deletes the log of a finished stream, to make room under the caps.
--
-- KEYS  record, log
-- ARGV  owner, epoch, stream
-- OK, also when it is gone. GONE, ENDED, FENCED; SEQ head: it is not finished, and an unfinished one is never cut.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'h:' .. ARGV[3])
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
local head = parse(row[4])
if not head then return 'OK' end
if not head.finished then return {'SEQ', head.seq} end
redis.call('UNLINK', KEYS[2])
redis.call('HDEL', KEYS[1], 'h:' .. ARGV[3])
redis.call('HINCRBY', KEYS[1], 'events', head.floor - head.seq) -- not -0, which Redis can't read
redis.call('HINCRBY', KEYS[1], 'bytes', 0 - head.bytes)
return 'OK'
