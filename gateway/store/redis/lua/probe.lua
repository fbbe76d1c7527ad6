#!lua flags=allow-oom
-- probe: which of the commands that this store uses the user may not run.
--
-- KEYS  a hash, a stream, a set, a sorted set, a string: of this call alone
-- OK, the names of those commands
local hash, stream, set, sorted, text = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local commands = {
  {'TIME'}, {'HSET', hash, 'a', '1'}, {'HMGET', hash, 'a'}, {'HGETALL', hash}, {'HKEYS', hash},
  {'HINCRBY', hash, 'a', '1'}, {'HDEL', hash, 'a'}, {'XADD', stream, '*', 'd', '1'}, {'XRANGE', stream, '-', '+'},
  {'XTRIM', stream, 'MAXLEN', '9'}, {'XLEN', stream},
  {'XGROUP', 'CREATE', stream, 'g', '0', name = 'XGROUP CREATE'},
  {'XGROUP', 'SETID', stream, 'g', '0', name = 'XGROUP SETID'}, {'XINFO', 'GROUPS', stream, name = 'XINFO GROUPS'},
  {'XINFO', 'STREAM', stream, name = 'XINFO STREAM'}, {'XSETID', stream, '9999999999999-0'},
  {'XREADGROUP', 'GROUP', 'g', 'g', 'NOACK', 'STREAMS', stream, '>'}, {'XDEL', stream, '1-1'},
  {'HLEN', hash}, {'SADD', set, 'a'}, {'SISMEMBER', set, 'a'}, {'SSCAN', set, '0'}, {'SREM', set, 'a'}, {'ZADD', sorted, '1', 'a'},
  {'ZRANGE', sorted, '0', '-1'}, {'ZREM', sorted, 'a'},
  {'SET', text, '1', 'PX', '60000'}, {'GET', text}, {'EXISTS', text}, {'PTTL', text},
  {'PEXPIRE', stream, '60000'}, {'UNLINK', stream}, {'DEL', hash, set, sorted, text},
}
local denied = {}
for _, command in ipairs(commands) do
  local reply = redis.pcall(unpack(command))
  local wrong = type(reply) == 'table' and reply.err or ''
  -- As Redis 7.2 and later say it, and 7.0.
  if string.find(wrong, 'ACL failure', 1, true) or string.find(wrong, "can't run this command", 1, true) then
    denied[#denied + 1] = command.name or command[1]
  end
end
return {'OK', denied}
