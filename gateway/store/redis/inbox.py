"""The receiver's side of mail: the task that reads this process's inbox.

Redis keeps the mark of what was read (`XREADGROUP … NOACK`): what is behind it can be withdrawn by its sender, and is
then never read; what is before it counts as taken. No letter is handed over twice, whatever Redis has forgotten.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import trio

from actors.ports import Incarnation
from gateway.store.redis.errors import LinkDown
from gateway.store.redis.keys import inbox_key, large_key
from gateway.store.redis.links import Command, lacks_function
from gateway.store.redis.loop_links import LoopLink, replies_to
from gateway.store.redis.scripts import SHA

BATCH: Final = 128
"""Letters read at once."""

BLOCK: Final = 100
"""Milliseconds for which a read waits in Redis: so long it takes to stop."""

BACKOFF_FIRST, BACKOFF_LAST = 0.02, 0.5
"""Seconds between two attempts while Redis is away."""

SENDERS: Final = 4096
"""Senders of which the last letter is remembered; those not heard of for longest are forgotten."""

TRIM: Final = 64
"""Letters handed over that are removed from the inbox together, or as soon as none comes."""

_BEGIN: Final = "0-0"

Row: TypeAlias = tuple[bytes, Sequence[bytes]]


class Inbox:
    """Reads for `on_letters`, and reads no more before that has returned. A letter whose text was lost is empty.

    `incarnation` says how this process is called now; after a lapse what is left in the former inbox is read first.
    Nothing is read before `open`.
    """

    def __init__(self, link: LoopLink, incarnation: Callable[[], Incarnation]) -> None:
        self.on_letters: Callable[[list[bytes]], object] = lambda letters: None
        self.depth = 0
        """Letters that were in Redis and not read yet when it was last looked at."""
        self._link = link
        self._incarnation = incarnation
        self._opened = trio.Event()
        self._stopped = trio.Event()
        self._reading = incarnation()
        self._mark = _BEGIN
        """The last letter that was handed over."""
        self._resumed = False
        self._old = False
        """The connection may lead to who was the primary."""
        self._spent = 0
        """Letters that were handed over and are in the inbox still."""
        self._large: list[bytes] = []
        """Of these the large ones."""
        self._quiet = False
        """None came of late."""
        self._last: dict[bytes, int] = {}

    def open(self) -> None:
        """There is somebody to deliver to."""
        self._opened.set()

    def renew(self) -> None:
        """See `LoopLink`."""
        self._old = True

    def stop(self) -> None:
        """Ends `run`, after what was read is handed over."""
        self._stopped.set()
        self._opened.set()

    async def run(self) -> None:
        """The body of the task."""
        await self._opened.wait()
        pause = BACKOFF_FIRST
        try:
            while not self._stopped.is_set():
                try:
                    await self._round()
                    pause = BACKOFF_FIRST
                except LinkDown:
                    self._resumed = False
                    with trio.move_on_after(pause):
                        await self._stopped.wait()
                    pause = min(2 * pause, BACKOFF_LAST)
        finally:
            self._link.close()

    async def _round(self) -> None:
        current = self._incarnation()
        if self._old:  # and where this reader is, the other primary may not know
            self._old = self._resumed = False
            self._link.renew()
        if not self._resumed and not await self._resume():
            # Not there yet, or (a former one) no more.
            if current == self._reading:
                raise LinkDown("there is no inbox")
            return self._begin(current)
        rows = await self._read(waits=current == self._reading)
        if rows:
            return await self._take(rows)
        return self._begin(current) if current != self._reading else None

    def _begin(self, incarnation: Incarnation) -> None:
        self._reading, self._mark, self._resumed = incarnation, _BEGIN, False
        self._spent, self._large = 0, []

    async def _resume(self) -> bool:
        """Sets the mark to where this reader is. False: there is no such inbox."""
        command = ("EVALSHA", SHA["resume"], 1, inbox_key(self._reading), self._mark)
        self._resumed = (await replies_to(self._link, [command]))[0] == b"OK"
        return self._resumed

    async def _read(self, *, waits: bool) -> list[Row]:
        """The next letters; those that were handed over are removed on the way, many at a time."""
        block = ("BLOCK", BLOCK) if waits and not self._stopped.is_set() else ()
        key = inbox_key(self._reading)
        read = ("XREADGROUP", "GROUP", "g", "g", "COUNT", BATCH, *block, "NOACK", "STREAMS", key, ">")
        # Behind the read, for then Redis answers all at once: a reply that comes before it would wake the loop.
        removal = self._removal(key)
        reply, *_, length = await self._link.exchange([read, *removal, ("XLEN", key)])
        if isinstance(reply, Exception):
            if lacks_function(reply):
                await self._link.prepare()
            raise LinkDown(str(reply)) from reply
        rows: list[Row] = reply[key.encode()] if reply else []
        self._quiet = not rows
        if removal:
            self._spent, self._large = 0, []
        self.depth = length - self._spent - len(rows) if isinstance(length, int) else 0
        return rows

    def _removal(self, key: str) -> list[Command]:
        """What removes the letters that were handed over, if it is time for it."""
        if not (self._spent >= TRIM or self._large or (self._spent and self._quiet)):
            return []
        time, _, number = self._mark.partition("-")
        removal: list[Command] = [("XTRIM", key, "MINID", f"{time}-{int(number) + 1}")]
        if self._large:
            removal.append(("HDEL", large_key(self._reading), *self._large))
        return removal

    async def _take(self, rows: list[Row]) -> None:
        """Hands over what was read. A large letter is fetched when those before it are, so that a connection that
        breaks costs none of them."""
        letters: list[bytes] = []
        for entry, fields in rows:
            sender, number, letter = _parse(fields)
            if sender and number <= self._last.get(sender, 0):
                continue
            if not letter:
                self._hand_over(letters)
                letters, letter = [], await self._fetch(entry)
                self._large.append(entry)
            self._remember(sender, number)
            letters.append(letter)
            self._mark = entry.decode()
        self._hand_over(letters)
        self._mark = rows[-1][0].decode()
        self._spent += len(rows)

    def _hand_over(self, letters: list[bytes]) -> None:
        if letters:
            self.on_letters(letters)

    async def _fetch(self, entry: bytes) -> bytes:
        """The text of a large letter; empty if it is gone."""
        [found] = await replies_to(self._link, [("HMGET", large_key(self._reading), entry)])
        return found[0] or b""

    def _remember(self, sender: bytes, number: int) -> None:
        self._last.pop(sender, None)
        self._last[sender] = number
        if len(self._last) > SENDERS:
            del self._last[next(iter(self._last))]


def _parse(fields: Sequence[bytes]) -> tuple[bytes, int, bytes]:
    """Sender, number and letter, empty if it lies elsewhere. What no replica wrote becomes an empty one of nobody."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        return found[b"s"], int(found[b"n"]), found[b"d"]
    except (KeyError, ValueError):
        return b"", 0, b""
