#!lua flags=allow-oom
-- register: enters an incarnation among those seen.
--
-- KEYS  replicas
-- ARGV  incarnation
-- OK, also when it is there.
redis.call('ZADD', KEYS[1], 'NX', now(), ARGV[1])
return 'OK'
