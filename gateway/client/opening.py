"""From a target to a client."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeAlias, cast

import trio

from actors.protocol.versions import MODERN
from gateway.client.client import Client, Link
from gateway.client.errors import VersionError
from gateway.client.handlers import Handler, Handlers, Roots
from gateway.client.transport import Transport
from gateway.version import VERSION
from gateway.wire.inproc import NativeServer

Target: TypeAlias = str | Sequence[str] | NativeServer | Transport
"""A URL, `unix:/path` (HTTP), `ws+unix:/path` (WebSocket), a command, a server in this process, or a transport of
one's own."""

CLOSING: Final = 6.0
"""Seconds for ending a connection in order: the longest that the end of a process takes."""
INFO: Final = {"name": "stagedoor", "version": VERSION}


@asynccontextmanager
async def open_client(
    target: Target,
    version: str | None = None,
    *,
    sampling: Handler | None = None,
    elicitation: Handler | None = None,
    roots: Roots | None = None,
    log: Handler | None = None,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    info: Mapping[str, str] = INFO,
    within: float = math.inf,
) -> AsyncIterator[Client]:
    """A client of the server at `target`, for the time of a block.

    `version` is the one revision to speak; without it the newest that both sides know. `sampling`, `elicitation` and
    `roots` answer what servers ask: functions, async or not, that take the params as they came and may return dicts as
    the protocol writes them; `log` hears of log messages. `headers` go with every HTTP request, `env`
    into the environment of a command.

    `within` are the seconds for connection and handshake, after which it is a trio.TooSlowError.

    Raises ClientError where there is no server, or none that speaks the protocol.
    """
    if version == MODERN and hasattr(target, "connect"):
        raise VersionError(
            f"a server in this process has sessions here; stagedoor.open_client speaks {version} with it"
        )
    until = trio.current_time() + within
    handlers = Handlers(sampling, elicitation, roots, log)
    try:
        async with trio.open_nursery() as nursery:
            connect = partial(_connect, target, nursery, headers or {}, env)
            other = partial(_connect_sse, target, nursery, headers or {}) if isinstance(target, str) else None
            with trio.fail_at(until):
                link = Link(await connect(), None if hasattr(target, "receive") else connect, other)
            try:
                # What is still to be said is said before the connection ends.
                async with trio.open_nursery() as last_words:
                    client = Client(link, handlers, info, nursery, last_words)
                    with trio.fail_at(until):
                        await client.begin(version)
                    try:
                        yield client
                    finally:
                        client.ending = True
            finally:
                with trio.move_on_after(CLOSING, shield=True):
                    await link.transport.close()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = _own(group)
        raise error from error.__cause__


async def _connect(
    target: Target, nursery: trio.Nursery, headers: Mapping[str, str], env: Mapping[str, str] | None
) -> Transport:
    """Imports no more than this target needs."""
    if isinstance(target, str) and target.lower().startswith(("ws://", "wss://", "ws+unix:")):
        from gateway.client.websocket import open_ws

        return await open_ws(target, nursery, headers=headers.items())
    if isinstance(target, str):
        from gateway.client.streamable_http import HttpTransport

        return HttpTransport(target, nursery, headers=headers.items())
    if hasattr(target, "connect"):
        from gateway.client.memory import MemoryTransport

        return MemoryTransport(cast(NativeServer, target), nursery)
    if isinstance(target, (list, tuple)) and target and all(isinstance(part, str) for part in target):
        from gateway.client.stdio import open_stdio

        return await open_stdio(target, nursery, env=env)
    if hasattr(target, "receive"):
        return cast(Transport, target)
    raise TypeError(f"{target!r} is no URL, no command, no server and no transport")


async def _connect_sse(url: str, nursery: trio.Nursery, headers: Mapping[str, str]) -> Transport:
    from gateway.client.sse_2024 import open_sse

    return await open_sse(url, nursery, headers=headers.items())


def _own(group: BaseException) -> BaseException:
    """What the block raised, out of the groups that the two nurseries made of it; their own tasks raise nothing."""
    for _ in range(2):
        if isinstance(group, BaseExceptionGroup) and len(group.exceptions) == 1:
            group = group.exceptions[0]
    return group
