#!lua flags=allow-oom
-- release: gives the ownership up; the record stays, and waits for the next claim.
--
-- KEYS  record
-- ARGV  owner, epoch, ttl (ms), eighth
-- OK, also when it was released at this epoch already. GONE, ENDED, FENCED.
-- It frees memory in the end, so it works when Redis is full.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'kept')
if row[2] == '' and row[3] == ARGV[2] and row[1] ~= 'ended' then return 'OK' end
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
redis.call('HSET', KEYS[1], 'owner', '')
keep(row[1], row[4], ARGV[4], ARGV[3])
return 'OK'
