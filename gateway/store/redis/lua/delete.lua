#!lua flags=allow-oom
-- delete: the record and its logs go, and nothing refuses whoever creates the key again; its epoch is higher, by the
-- clock.
--
-- KEYS  record
-- ARGV  owner, epoch
-- OK, also when it is gone. ENDED, FENCED.
-- It frees memory, so it works when Redis is full.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch')
if not row[1] then return 'OK' end
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
wipe()
return 'OK'
