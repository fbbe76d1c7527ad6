"""Links to Redis that the loop uses itself: no thread is woken for a batch, and none wakes the loop for its replies.

redis-py makes the connections, on a thread (names, TLS, Sentinel, the slots of a cluster); from then on their sockets
are written and read here. What holds of links (`links.py`) holds of these.
"""

import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

import trio
from hiredis import PushNotification, Reader
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import ReadOnlyError, RedisError
from trio.lowlevel import wait_readable, wait_writable

from gateway.store.redis.errors import LinkDown
from gateway.store.redis.links import (
    SLOW,
    Command,
    DirectLink,
    Primaries,
    Reply,
    direct_link,
    down,
    lacks_function,
    loads,
    pack,
)
from gateway.store.redis.targets import Address, Connection, Target

READ: Final = 64 * 1024
"""Bytes that are read at once."""

Ts = TypeVarTuple("Ts")
Result = TypeVar("Result")

_NOTHING: Final = object()


class LoopLink(Protocol):
    """One task's way to Redis. A call that is cancelled costs the connection."""

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Sends all and reads a reply to each; LinkDown if the connection breaks, whatever was executed by then."""

    async def prepare(self) -> None:
        """Loads the functions again, after an error reply that says they (or the slots) are not where they were."""

    def renew(self) -> None:
        """The next exchange is on another connection: this one may lead to who was the primary."""

    def close(self) -> None:
        """Closes the connection."""


def open_loop_link(target: Target) -> LoopLink:
    """A link for one task; it connects when it is first used."""
    return ClusterLoopLink(target) if target.kind == "cluster" else DirectLoopLink(direct_link(target))


async def replies_to(link: LoopLink, commands: Sequence[Command]) -> list[Reply]:
    """Replies, none of which is an error; else LinkDown. For commands that may be executed twice."""
    replies = await link.exchange(commands) if commands else []
    if any(lacks_function(reply) for reply in replies):
        await link.prepare()
        replies = await link.exchange(commands)
    for reply in replies:
        if isinstance(reply, Exception):
            raise LinkDown(str(reply)) from reply
    return replies


class DirectLoopLink:
    """One connection to one primary."""

    def __init__(self, link: DirectLink) -> None:
        """`link` makes the connections; nobody else uses it."""
        self._link = link
        self._wire: _Wire | None = None
        self._old = False

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """See `LoopLink`."""
        if self._old:
            self._old = False
            self.close()
        whole = False
        try:
            if self._wire is None:
                self._wire = _Wire(await _in_thread(self._link.connect))
            sent = time.monotonic()
            await self._wire.send(pack(commands))
            replies = await self._wire.replies(len(commands))
            if time.monotonic() - sent > SLOW:
                await _in_thread(self._link.confirm)
            # One that has become a replica: the primary is elsewhere, by now the same name may lead there.
            whole = not self._wire.read_only
        except (RedisError, OSError) as error:
            raise down(error) from error
        finally:
            if not whole:
                self.close()
        return replies

    async def prepare(self) -> None:
        """See `LoopLink`. One that is not connected does this when it connects."""
        if self._wire is not None:
            await self.exchange(loads())

    def renew(self) -> None:
        """See `LoopLink`."""
        self._old = True

    def close(self) -> None:
        """See `LoopLink`."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._link.close()


class ClusterLoopLink:
    """One connection to each primary of a Redis Cluster; a batch is split by slot."""

    def __init__(self, target: Target) -> None:
        self._primaries = Primaries(target)
        self._links: dict[Address, DirectLoopLink] = {}

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """See `LoopLink`. Redirections come back as error replies and are not followed."""
        if not self._primaries.known:
            await _in_thread(self._primaries.learn)
        replies: list[Reply] = [None] * len(commands)
        for address, indices in self._primaries.of(commands).items():
            if address not in self._links:
                self._links[address] = DirectLoopLink(self._primaries.link_to(address))
            try:
                answers = await self._links[address].exchange([commands[i] for i in indices])
            except LinkDown:
                self._primaries.lost(address)
                raise
            for index, reply in zip(indices, answers, strict=True):
                replies[index] = reply
        return replies

    async def prepare(self) -> None:
        """See `LoopLink`."""
        self._primaries.forget()
        for link in self._links.values():
            with suppress(LinkDown):
                await link.prepare()

    def renew(self) -> None:
        """See `LoopLink`. The nodes of a cluster tell each other at once who is a primary, and then refuse."""

    def close(self) -> None:
        """See `LoopLink`."""
        for link in self._links.values():
            link.close()
        self._primaries.forget()


class _Wire:
    """The socket of a connection that redis-py has made.

    A task of its own breaks off what waits for too long: a cancel scope for each wait costs ten times as much as the
    look at the time that is left of it.
    """

    def __init__(self, connection: Connection) -> None:
        self._timeout = connection.socket_timeout
        self._waits_since: float | None = None
        self._closed = trio.Event()
        self.read_only = False
        """It has refused a write for that reason."""
        self._socket: socket.socket = connection._sock
        self._socket.setblocking(False)
        trio.lowlevel.spawn_system_task(self._watch)
        parse: Callable[[str], Exception] = DefaultParser.parse_error
        self._reader: Any = Reader(replyError=parse, notEnoughData=_NOTHING)

    async def send(self, data: bytes) -> None:
        """Writes it all."""
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, SSLWantWriteError):
                await self._wait(wait_writable)
            except SSLWantReadError:
                await self._wait(wait_readable)

    async def replies(self, count: int) -> list[Reply]:
        """The next replies."""
        replies: list[Reply] = []
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is _NOTHING:
                await self._read()
            elif isinstance(reply, Broken):
                raise reply
            elif type(reply) is not PushNotification:
                self.read_only = self.read_only or type(reply) is ReadOnlyError
                replies.append(reply)
        return replies

    async def _read(self) -> None:
        if not (isinstance(self._socket, SSLSocket) and self._socket.pending()):
            await self._wait(wait_readable)
        while True:
            try:
                data = self._socket.recv(READ)
                break
            except (BlockingIOError, SSLWantReadError):
                await self._wait(wait_readable)
            except SSLWantWriteError:
                await self._wait(wait_writable)
        if not data:
            raise Broken("Redis has closed the connection")
        self._reader.feed(data)

    async def _wait(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._waits_since = trio.current_time()
        try:
            await ready(self._socket)
        except trio.ClosedResourceError:
            raise TimeoutError("Redis is silent") from None
        finally:
            self._waits_since = None

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed.set()

    async def _watch(self) -> None:
        while not self._closed.is_set():
            left = self._timeout
            if self._waits_since is not None:
                left -= trio.current_time() - self._waits_since
            if left <= 0:
                trio.lowlevel.notify_closing(self._socket)
                left = self._timeout
            with trio.move_on_after(left):
                await self._closed.wait()


async def _in_thread(fn: Callable[[*Ts], Result], *args: *Ts) -> Result:
    # Not waited for when cancelled: a name lookup can hang. What it has made by then is closed with it.
    return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=True)
