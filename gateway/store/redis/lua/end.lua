#!lua flags=allow-oom
-- end: ends the session for good; its logs go, and a tombstone refuses late writers (law 5).
--
-- KEYS  record
-- ARGV  owner, epoch, reason, ttl of the tombstone (ms)
-- OK, also for the same owner and epoch again. GONE, ENDED, FENCED.
-- It frees memory, so it works when Redis is full.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch')
if row[1] == 'ended' and row[2] == ARGV[1] and row[3] == ARGV[2] then return 'OK' end
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
wipe()
redis.call('HSET', KEYS[1], 'state', 'ended', 'owner', ARGV[1], 'epoch', ARGV[2], 'reason', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 'OK'
