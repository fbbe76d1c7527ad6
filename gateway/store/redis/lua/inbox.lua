-- What the functions of inboxes share; put before each of them.
--
-- A value of a flat reply of names and values.
local function field_of(flat, name)
  for i = 1, #flat, 2 do
    if flat[i] == name then return flat[i + 1] end
  end
end

-- Forgets the senders of which nothing has come since that time (ms).
local function forget(seen, time)
  local senders = redis.call('HGETALL', seen)
  for i = 1, #senders, 2 do
    if string.match(senders[i + 1], ' (%d+)') + 0 < time then redis.call('HDEL', seen, senders[i]) end
  end
end

-- The last entry that was given to the inbox's reader; nil if there is no such inbox.
local function mark_of(inbox)
  local groups = redis.pcall('XINFO', 'GROUPS', inbox)
  return not groups.err and groups[1] and field_of(groups[1], 'last-delivered-id') or nil
end

-- Whether one entry comes after another.
local function behind(entry, other)
  local time, number = string.match(entry, '^(%d+)-(%d+)$')
  local times, numbers = string.match(other, '^(%d+)-(%d+)$')
  if time ~= times then return time + 0 > times + 0 end
  return number + 0 > numbers + 0
end
