#!lua
-- post: puts a letter into an inbox, once.
--
-- KEYS  alive, inbox, seen, large
-- ARGV  sender, number of the letter among the sender's, most letters, ttl of `seen` (ms), the letter, and if it is a
--       large one: most large letters, their ttl (ms)
-- OK, the name of the entry; for the sender's last number again the same name, for an earlier one '0-0', which counts
-- as taken: a second entry would survive the withdrawal of the first.
-- DEAD: nobody reads there; INBOX_FULL.
local seen = redis.call('HMGET', KEYS[3], ARGV[1])[1]
if seen then
  local number, entry = string.match(seen, '^(%d+) (.+)$')
  if number == ARGV[2] then return {'OK', entry} end
  if number + 0 > ARGV[2] + 0 then return {'OK', '0-0'} end
end
if redis.call('EXISTS', KEYS[1]) == 0 then return {'DEAD'} end
if redis.call('XLEN', KEYS[2]) >= ARGV[3] + 0 then return {'INBOX_FULL'} end
local large = ARGV[6]
if large and redis.call('HLEN', KEYS[4]) >= large + 0 then return {'INBOX_FULL'} end
-- A stream that is made here would have no reader.
local entry = redis.call('XADD', KEYS[2], 'NOMKSTREAM', '*', 's', ARGV[1], 'n', ARGV[2], 'd', large and '' or ARGV[5])
if not entry then return {'DEAD'} end
if large then
  redis.call('HSET', KEYS[4], entry, ARGV[5])
  redis.call('PEXPIRE', KEYS[4], ARGV[7])
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2] .. ' ' .. entry)
if not seen then
  redis.call('PEXPIRE', KEYS[3], ARGV[4]) -- from here on the heartbeat keeps it
  if redis.call('HLEN', KEYS[3]) > 1000 then forget(KEYS[3], string.match(entry, '^%d+') - ARGV[4]) end
end
return {'OK', entry}
