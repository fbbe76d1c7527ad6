#!lua flags=allow-oom
-- resume: the reader of an inbox goes on behind the last letter that it has handed over, whatever was read since then
-- or (after a failover) is known of it here.
--
-- KEYS  inbox
-- ARGV  entry
-- OK. GONE: there is no such inbox.
if not mark_of(KEYS[1]) then return {'GONE'} end
-- A new primary's clock may be behind: letters to come must not get names from before the mark.
local newest = field_of(redis.call('XINFO', 'STREAM', KEYS[1]), 'last-generated-id')
if behind(ARGV[1], newest) then redis.call('XSETID', KEYS[1], ARGV[1]) end
redis.call('XGROUP', 'SETID', KEYS[1], 'g', ARGV[1])
return 'OK'
