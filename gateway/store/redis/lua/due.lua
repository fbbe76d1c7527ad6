#!lua flags=no-writes
-- due: sessions that nobody has in memory, and whose end should have come.
--
-- KEYS  due
-- ARGV  before (s), at most so many
-- OK, the keys of sessions, the longest overdue first.
return {'OK', redis.call('ZRANGE', KEYS[1], '-inf', '(' .. ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])}
