#!lua
-- written: a finished stream was written whole, so its log may go sooner, and is the first that goes for want of room.
--
-- KEYS  record, log
-- ARGV  owner, epoch, stream, ttl of a written stream (ms)
-- OK, whether or not there is such a stream. GONE, ENDED, FENCED.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'due', 'h:' .. ARGV[3])
local refused = refusal(row[1], row[2], row[3])
if refused then return refused end
local head = parse(row[5])
local till = now() + tonumber(ARGV[4])
if head and head.finished then
  head.written = ' w'
  local due = tonumber(row[4])
  if till < head.till then
    head.till = till
    if due == 0 or till < due then due = till end
    redis.call('PEXPIRE', KEYS[2], ARGV[4])
  end
  redis.call('HSET', KEYS[1], 'h:' .. ARGV[3], format(head), 'due', due)
end
return 'OK'
