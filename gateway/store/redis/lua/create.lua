#!lua
-- create: a new session, owned by who makes it, that lives a minute until it is first saved.
--
-- KEYS  record
-- ARGV  owner, nonce, schema, ttl (ms), then name-value pairs
-- OK epoch; the same owner and nonce again get the same reply.
-- EXISTS: there is a record or a tombstone.
local old = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'nonce')
if old[1] then
  if old[2] == ARGV[1] and old[3] == ARGV[2] then return {'OK', old[1]} end
  return {'EXISTS'}
end
local epoch = now()
local called = history()
redis.call('HSET', KEYS[1], 'v', ARGV[3], 'rev', '0', 'owner', ARGV[1], 'epoch', epoch, 'nonce', ARGV[2],
  'tries', '0', 'state', 'young', 'events', '0', 'bytes', '0', 'due', '0', 'kept', '', 'history', called)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
apply(5, math.floor((#ARGV - 4) / 2))
return {'OK', epoch}
