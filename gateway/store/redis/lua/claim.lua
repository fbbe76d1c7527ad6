#!lua
-- claim: compare-and-set of the ownership, at a new epoch.
--
-- KEYS  record
-- ARGV  me, nonce, expected owner ('' for none), expected epoch, schema that I read, ttl (ms), eighth,
--       1 if it is to be rebuilt, 0 if it lives in my process
-- OK epoch, time (ms), the record flat; the same owner and nonce again get the same grant.
-- GONE, ENDED, FENCED; TOO_NEW schema.
-- `history` is what Redis called its data when the record was last claimed. By another name it may lack what it had
-- acknowledged: the record is `older`, until it is saved, than what its owner did.
local row = redis.call('HMGET', KEYS[1], 'state', 'v', 'owner', 'epoch', 'nonce', 'history')
if not row[1] then return {'GONE'} end
if row[1] == 'ended' then return {'ENDED'} end
if tonumber(row[2]) > tonumber(ARGV[5]) then return {'TOO_NEW', tonumber(row[2])} end
local time = now()
local epoch = row[4]
if not (row[3] == ARGV[1] and row[5] == ARGV[2]) then
  if row[3] ~= ARGV[3] or row[4] ~= ARGV[4] then return {'FENCED'} end
  epoch = math.max(row[4] + 1, time)
  local called = history()
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', epoch, 'nonce', ARGV[2], 'history', called)
  if row[6] and row[6] ~= called then redis.call('HSET', KEYS[1], 'older', '1') end
  redis.call('HINCRBY', KEYS[1], 'tries', ARGV[8])
  keep(row[1], nil, ARGV[7], ARGV[6])
end
return {'OK', epoch, time, redis.call('HGETALL', KEYS[1])}
