#!lua flags=allow-oom
-- register: enters an incarnation among those seen, after every one that is there.
--
-- KEYS  replicas
-- ARGV  incarnation
-- OK, those that were entered before it. The order decides between two that start at once: the later one sees the
-- earlier one's `alive`, which was set before it was entered.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score then
  local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  score = math.max(newest[2] and newest[2] + 1 or 0, now())
  redis.call('ZADD', KEYS[1], score, ARGV[1])
end
return {'OK', redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. score)}
