#!lua
-- touch: keeps the record and its unfinished logs.
--
-- KEYS  record
-- ARGV  owner, epoch, ttl (ms)
-- OK. GONE, ENDED, FENCED.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch')
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
keep(row[1], '0', now(), ARGV[3], 0)
return {'OK'}
