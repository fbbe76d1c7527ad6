#!lua flags=allow-oom
-- withdraw: takes a letter back that nobody has read.
--
-- KEYS  inbox, large, withdrawn
-- ARGV  entry, ttl of what is known of the withdrawn (ms)
-- OK 1, and again 1: nobody read it, and nobody will. OK 0: it was taken, or nobody can tell any more.
-- It frees memory, so it works when Redis is full.
if redis.call('SISMEMBER', KEYS[3], ARGV[1]) == 1 then return {'OK', 1} end
local taken = mark_of(KEYS[1])
-- Of one that is not there nobody knows: Redis may have lost the mark as well.
if not taken or not behind(ARGV[1], taken) or redis.call('XDEL', KEYS[1], ARGV[1]) == 0 then return {'OK', 0} end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return {'OK', 1}
