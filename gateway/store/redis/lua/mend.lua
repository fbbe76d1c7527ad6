#!lua
-- mend: a stream goes on behind the last event that was acknowledged, though Redis lost some up to there.
--
-- KEYS  record, log
-- ARGV  owner, epoch, stream, head, epoch at which it was opened
-- OK, also when the recorded head is not below. GONE, ENDED, FENCED; FINISHED head.
-- Entries that are still there stay; the floor says that after them something is missing.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'h:' .. ARGV[3])
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
local head, to = parse(row[4]), tonumber(ARGV[4])
if not head then
  redis.call('UNLINK', KEYS[2])
  head = {seq = 0, bytes = 0, epoch = ARGV[2], till = 0, floor = 0, opener = ARGV[5], print = 0, written = ''}
elseif head.seq >= to then
  return 'OK'
elseif head.finished then
  return {'FINISHED', head.seq}
end
redis.call('HINCRBY', KEYS[1], 'events', head.floor - head.seq)
head.seq, head.floor = to, to
redis.call('HSET', KEYS[1], 'h:' .. ARGV[3], format(head))
return 'OK'
