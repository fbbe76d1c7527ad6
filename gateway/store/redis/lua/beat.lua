#!lua flags=allow-oom
-- beat: takes a lease, or renews one that is still there; and what belongs to it.
--
-- KEYS  alive, owned, inbox, seen
-- ARGV  ttl (ms), info, ttl of `owned` (ms), ttl of the inbox (ms), '1' to take it
-- OK time (ms). LAPSED: `alive` was gone, so others may have found this incarnation dead; it must not come back.
if ARGV[5] == '1' then
  -- Nobody can post before the group is there: whatever it was not given was never read. (Taken again, it is there.)
  redis.pcall('XGROUP', 'CREATE', KEYS[3], 'g', '0', 'MKSTREAM')
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
elseif not redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1], 'XX') then
  return {'LAPSED'}
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[4], ARGV[4])
return {'OK', now()}
