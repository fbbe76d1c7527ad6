#!lua flags=allow-oom
-- beat: takes a lease, or renews one that is still there; and what belongs to it.
--
-- KEYS  alive, owned
-- ARGV  ttl (ms), info, ttl of `owned` (ms), '1' to take it
-- OK. LAPSED: `alive` was gone, so others may have found this incarnation dead; it must not come back.
if ARGV[4] == '1' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
elseif not redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1], 'XX') then
  return {'LAPSED'}
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 'OK'
