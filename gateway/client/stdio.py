"""To a command that speaks on its standard streams, one message a line. Its process group ends with the connection."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from actors.ports import Headers, RequestFailed
from actors.protocol import codec, errors
from actors.protocol.messages import RequestId
from actors.protocol.table import Limits, StdioTarget
from gateway.client.errors import ConnectionLostError, not_resumable
from gateway.client.inbox import Inbox
from gateway.client.transport import WAITING, Received
from gateway.wire import oversized
from gateway.wire.errors import SpawnError
from gateway.wire.lines import LineSplitter, LongLine
from gateway.wire.process import Child, Patience, describe_exit, end_group, read_pipe, spawn

STDERR: Final = 10
"""The last lines of its standard error that are kept."""
LAST_WORDS: Final = 0.5
"""Seconds in which a process that speaks no more is expected to say how it ended."""

_LOG: Final = logging.getLogger("stagedoor.client")


class StdioTransport:
    """Made by `open_stdio`."""

    session_id = None
    last_event_id = None

    def __init__(self, name: str, child: Child, nursery: trio.Nursery, limit: int) -> None:
        self._name = name
        self._child = child
        self._limit = limit
        self._outbox, self._to_write = trio.open_memory_channel[bytes](WAITING)
        self._inbox = Inbox()
        self._stderr: deque[str] = deque(maxlen=STDERR)
        self._said_all = trio.Event()
        self._closing = False
        self._gone: str | None = None
        self._ended = trio.Event()
        for task in (self._write, self._read, self._read_stderr):
            nursery.start_soon(task)

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        try:
            await self._outbox.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ConnectionLostError(f"{self._name} reads no more", executed="no", stderr=(*self._stderr,)) from None

    async def receive(self) -> Received:
        try:
            return await self._inbox.receive()
        except trio.EndOfChannel:
            raise await self._lost() from None

    async def close(self) -> None:
        """Closes its standard input, then sends TERM, then KILL, to the group."""
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        self._outbox.close()
        self._inbox.close()
        try:
            await end_group(self._child, Patience(), self._said_all.wait)
        finally:
            self._child.close_pipes()
            self._ended.set()

    async def resume_from(self, event_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise not_resumable("a process")

    async def _lost(self) -> ConnectionLostError:
        if self._gone is not None:
            return ConnectionLostError(self._gone, stderr=(*self._stderr,))
        with trio.move_on_after(LAST_WORDS):
            await self._child.process.wait()
            await self._said_all.wait()
        status = self._child.process.returncode
        why = "closed its standard output" if status is None else describe_exit(status)
        return ConnectionLostError(f"{self._name} {why}", stderr=(*self._stderr,))

    async def _write(self) -> None:
        """The one writer, so that no message is written in part."""
        try:
            async for message in self._to_write:
                await self._child.stdin.send_all(message.replace(b"\n", b" ") + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._to_write.close()
        finally:
            self._child.stdin.close()

    async def _read(self) -> None:
        lines = LineSplitter(self._limit)
        while chunk := await read_pipe(self._child.stdout):
            for line in lines.feed(chunk):
                if isinstance(line, LongLine):
                    self._drop(line)
                elif line.strip().startswith((b"{", b"[")) and not self._closing:
                    await self._inbox.room()  # there is some once nobody reads: it must not stop at a full pipe
                    self._inbox.put(line.strip())
        self._inbox.close()

    def _drop(self, line: LongLine) -> None:
        """An answer that is too large fails its request, and so does a question, at the server. Where the line does not
        say whose it is, nobody knows who waits for it, and the connection ends."""
        what = f"{self._name} sent a line of {line.size} bytes, and {self._limit} are allowed"
        match oversized.read(line):
            case oversized.Oversized(oversized.Kind.ANSWER, int(id)):
                self._inbox.put(RequestFailed(id, "too_large", what, "unknown"))
            case oversized.Oversized(oversized.Kind.REQUEST, int() | str() as id) if self._refuse(id):
                pass
            case oversized.Oversized(oversized.Kind.TOLD):
                _LOG.warning("%s: it was dropped", what)
            case _:
                self._gone = self._gone or what
                self._inbox.close()

    def _refuse(self, id: RequestId) -> bool:
        """Answers that a question is too large; False where the server does not read."""
        try:
            self._outbox.send_nowait(codec.encode_error(id, errors.too_large(self._limit)))
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    async def _read_stderr(self) -> None:
        lines = LineSplitter(4096)
        try:
            while chunk := await read_pipe(self._child.stderr):
                for line in lines.feed(chunk):
                    text = (line.head if isinstance(line, LongLine) else line).decode(errors="replace").rstrip()
                    self._stderr.append(text)
                    _LOG.info("%s: %s", self._name, text)
        finally:
            self._said_all.set()


async def open_stdio(
    command: Sequence[str],
    nursery: trio.Nursery,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    message_bytes: int = Limits().message_bytes,
) -> StdioTransport:
    """Starts the command. Raises ConnectionLostError if it can't be started. It inherits what processes need of the
    environment (HOME, PATH and the like), and gets `env`."""
    target = StdioTarget(command[0], tuple(command[1:]), tuple((env or {}).items()), cwd)
    try:
        child = await spawn(target)
    except SpawnError as error:
        raise ConnectionLostError(str(error), executed="no") from error
    return StdioTransport(command[0].rpartition("/")[2], child, nursery, message_bytes)
