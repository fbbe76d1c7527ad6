#!lua
-- touch: keeps the record and its unfinished logs.
--
-- KEYS  record
-- ARGV  owner, epoch, ttl (ms), eighth
-- OK. GONE, ENDED, FENCED.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch')
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
keep(row[1], nil, ARGV[4], ARGV[3])
return 'OK'
