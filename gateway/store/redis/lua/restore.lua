#!lua
-- restore: the record as its owner has it, after Redis lost what it had acknowledged.
--
-- KEYS  record
-- ARGV  owner, epoch, rev, schema, ttl (ms), eighth, replay ttl (ms), number of streams, for each its name, its head,
--       '1' if it is finished and the epoch at which it was opened, then name-value pairs
-- OK, also when there is nothing to restore. FENCED: the record is of a higher epoch, or another's; ENDED.
-- Of a record of a lower epoch nothing is kept. Of this owner's own at a lower revision only values were lost for
-- certain: its logs stay, and what it says of requests that these values don't speak of.
local row = redis.call('HMGET', KEYS[1], 'state', 'owner', 'epoch', 'rev')
if row[1] == 'ended' then return {'ENDED'} end
local own = row[2] == ARGV[1] and row[3] == ARGV[2]
if row[1] and not own and tonumber(row[3]) >= tonumber(ARGV[2]) then return {'FENCED'} end
if own and tonumber(row[4]) >= tonumber(ARGV[3]) then return 'OK' end
local heads, pairs_at = {}, 9 + 4 * ARGV[8]
if own then
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    local kind = string.sub(name, 1, 2)
    if kind == 'h:' then
      heads[name] = true
    elseif kind == 'f:' then
      redis.call('HDEL', KEYS[1], name)
    end
  end
else
  wipe()
  redis.call('HSET', KEYS[1], 'v', ARGV[4], 'owner', ARGV[1], 'epoch', ARGV[2], 'nonce', '', 'events', '0',
    'bytes', '0', 'due', '0', 'rev', '-1')
end
local called = history()
redis.call('HSET', KEYS[1], 'tries', '0', 'state', 'live', 'history', called)
redis.call('HDEL', KEYS[1], 'older')
for i = 9, pairs_at - 1, 4 do
  if not heads['h:' .. ARGV[i]] then
    local till = ARGV[i + 2] == '1' and now() + ARGV[7] or 0
    local head = {
      seq = ARGV[i + 1], bytes = 0, epoch = ARGV[2], till = till, floor = ARGV[i + 1], opener = ARGV[i + 3], print = 0,
      written = '',
    }
    redis.call('UNLINK', log_of(ARGV[i]))
    redis.call('HSET', KEYS[1], 'h:' .. ARGV[i], format(head))
  end
end
apply(pairs_at, math.floor((#ARGV - pairs_at + 1) / 2))
purge(now())
keep('live', nil, ARGV[6], ARGV[5])
redis.call('HSET', KEYS[1], 'rev', ARGV[3])
return 'OK'
