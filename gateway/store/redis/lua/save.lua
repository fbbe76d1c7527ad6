#!lua
-- save: changes of the record under a revision; the first one makes a young session last.
--
-- KEYS  record
-- ARGV  owner, epoch, rev, ttl (ms), eighth, number of pairs, name-value pairs, names to delete
-- OK for the next revision, and for the recorded one again. Clears `tries` and `older`.
-- GONE, ENDED, FENCED; SEQ rev: the recorded revision is another.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'kept', 'rev', 'older')
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
local rev, stored = tonumber(ARGV[3]), tonumber(row[5])
if rev ~= stored and rev ~= stored + 1 then return {'SEQ', stored} end
redis.call('HSET', KEYS[1], 'rev', ARGV[3], 'tries', '0', 'state', 'live')
if row[6] then redis.call('HDEL', KEYS[1], 'older') end
apply(7, tonumber(ARGV[6]))
keep('live', row[4], ARGV[5], ARGV[4])
return 'OK'
