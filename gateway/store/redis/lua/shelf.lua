#!lua
-- shelf: one value that any replica may change, and the lock of whoever is about to.
--
-- KEYS  the value: a hash of `v` (the value), `t` (its tag, another one for each change), `l` (who has the lock), `u` (until
--       when, ms)
-- ARGV  what: read | put | take | lock | unlock, then
--       read: for how long (ms) it stays from now on, if that is said and it is not empty
--       put: value, tag, ttl (ms), 'any' or 'tag', the tag that it must have ('': it must not be there)
--       lock: who, for how long (ms); unlock: who
-- OK and for read and take the value and its tag, if there is one. FENCED: it has another tag, or another has the lock.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local row = redis.call('HMGET', KEYS[1], 'v', 't', 'l', 'u')
local what = ARGV[1]
if what == 'read' then
  -- Written down once in a while alone: whoever uses a value reads it every few seconds.
  if ARGV[2] and (row[1] or '') ~= '' and redis.call('PTTL', KEYS[1]) < ARGV[2] * 0.9 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return row[1] and {'OK', row[1], row[2]} or {'OK'}
end
if what == 'take' then
  redis.call('DEL', KEYS[1])
  return row[1] and {'OK', row[1], row[2]} or {'OK'}
end
if what == 'put' then
  if ARGV[5] == 'tag' and (row[2] or '') ~= ARGV[6] then return {'FENCED', row[2] or ''} end
  redis.call('HSET', KEYS[1], 'v', ARGV[2], 't', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return {'OK'}
end
if what == 'lock' then
  if row[3] and row[3] ~= ARGV[2] and row[4] + 0 > now then return {'FENCED', row[3]} end
  redis.call('HSET', KEYS[1], 'l', ARGV[2], 'u', string.format('%d', now + ARGV[3]))
  if not row[1] then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return {'OK'}
end
if row[3] == ARGV[2] then
  if row[1] then redis.call('HDEL', KEYS[1], 'l', 'u') else redis.call('DEL', KEYS[1]) end
end
return {'OK'}
