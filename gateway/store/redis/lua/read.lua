#!lua flags=no-writes
-- read: the record as it is.
--
-- KEYS  record
-- ARGV  schema that I read
-- OK time (ms), the record flat. GONE, ENDED; TOO_NEW schema.
local row = redis.call('HMGET', KEYS[1], 'state', 'v')
if not row[1] then return {'GONE'} end
if row[1] == 'ended' then return {'ENDED'} end
if tonumber(row[2]) > tonumber(ARGV[1]) then return {'TOO_NEW', tonumber(row[2])} end
return {'OK', now(), redis.call('HGETALL', KEYS[1])}
