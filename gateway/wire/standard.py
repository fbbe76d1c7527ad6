"""The standard streams of this process as a channel: one message a line, and nothing else on them.

Whatever else reads standard input or writes standard output, a library that prints or a child process, gets nothing and
writes to standard error: the streams are put out of its reach. Neither is made non-blocking, since others may have the
same pipe or terminal open: reads and writes are only as large as cannot block.
"""

import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from actors.ports import NO_RIGHTS, HungUp, Rights, TooLong
from actors.runtime.places import Turns
from gateway.wire import oversized
from gateway.wire.lines import FRAMES_PER_TURN, LineSplitter, LongLine

READ: Final = 64 * 1024
AT_ONCE: Final = getattr(select, "PIPE_BUF", 512)
"""Bytes that a pipe which is writable takes without blocking (POSIX)."""
TOGETHER: Final = 16
"""So many of these are written without giving others a turn."""


class StandardStreams:
    """Implements `Channel` over two descriptors. `message_bytes` is the longest line, `patience` the seconds after
    which a reader that takes nothing is given up. Nobody has a token here: all is asked by the user of the operating
    system."""

    rights: Rights = NO_RIGHTS
    peer = ""
    waiting = True
    """Only who waits for it can tell."""

    def __init__(self, source: int, target: int, message_bytes: int, patience: float) -> None:
        self._in, self._out = source, target
        self._files = stat.S_ISREG(os.fstat(self._out).st_mode)
        self._room = select.poll()
        self._room.register(self._out, select.POLLOUT)
        self._patience = patience
        self._lines = LineSplitter(message_bytes)
        self._waiting: deque[bytes | LongLine] = deque()
        self._ended = False
        self._turn = 0
        self._writing = Turns()
        self._rest = b""
        """Of a line that was begun, and whoever said it was cancelled."""

    def listen(self, ready: Callable[[], object]) -> None:
        """Nobody is called: somebody always waits."""

    async def receive(self) -> bytes | TooLong | None:
        while True:
            while self._waiting:
                line = self._waiting.popleft()
                self._turn += 1
                if self._turn % FRAMES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
                if isinstance(line, LongLine):
                    return _too_long(line)
                if line.strip():
                    return line
            if self._ended:
                return None
            chunk = await self._read()
            if chunk:
                self._waiting.extend(self._lines.feed(chunk))
            else:
                self._ended = True
                rest = self._lines.finish()
                self._waiting.extend(() if rest is None else (rest,))

    async def _read(self) -> bytes:
        try:
            await trio.lowlevel.wait_readable(self._in)
        except OSError:  # a file is always readable, and no system waits for it
            await trio.lowlevel.checkpoint()
        try:
            return os.read(self._in, READ)
        except BlockingIOError:  # somebody else has made it so, and was faster
            return await self._read()
        except OSError:
            return b""

    async def send(self, message: bytes) -> None:
        line = message + b"\n"
        async with self._writing:
            data = memoryview(self._rest + line)
            try:
                for _ in range(TOGETHER):  # as most messages are: no timer, and no wait
                    if not data or self._room.poll(0) != [(self._out, select.POLLOUT)]:
                        break
                    data = data[self._write_now(data) :]
                if not data:
                    return
                with trio.CancelScope() as scope:
                    while data:
                        scope.deadline = trio.current_time() + self._patience
                        data = data[await self._write(data) :]
                    return
            finally:
                self._rest = bytes(data[: -len(line)] if len(data) >= len(line) else data)
            raise HungUp

    async def _write(self, data: memoryview) -> int:
        try:
            if self._files:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_writable(self._out)
        except OSError as error:
            raise HungUp from error
        return self._write_now(data)

    def _write_now(self, data: memoryview) -> int:
        try:
            return os.write(self._out, data[:AT_ONCE])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise HungUp from error


def _too_long(line: LongLine) -> TooLong:
    was = oversized.read(line)
    return TooLong(line.size, was.id if was is not None and was.kind is oversized.Kind.REQUEST else None)


def take_standard_streams() -> tuple[int, int]:
    """Standard input and output under other numbers; under their own there is nothing to read, and standard error."""
    for place, stream in enumerate((sys.stdin, sys.stdout)):
        if stream is None:  # it was closed when we were started, and something else may have its number since
            _close(place)
    kept = os.dup(0), os.dup(1)  # not inherited by child processes
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return kept


def _close(place: int) -> None:
    """Has standard input be at its end, and standard output broken."""
    nothing, ends = os.open(os.devnull, os.O_RDWR), os.pipe()
    os.close(ends[0])
    os.dup2(ends[1] if place == 1 else nothing, place)
    for made in {nothing, ends[1]} - {place}:
        os.close(made)
