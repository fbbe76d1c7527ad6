"""The serve loop: accepts connections, runs each inside the crash boundary, and ends in bounded time.

hypercorn's own loop takes no other connection class, and starts and stops things that we have no use for (lifespan,
worker processes, signal handlers).
"""

import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import trio
from hypercorn.trio.worker_context import WorkerContext

from actors.ports import Log
from actors.runtime.boundary import Boundary
from actors.runtime.exits import Exit
from gateway.http.config import EdgeConfig, ServeConfig
from gateway.http.connection import Connection
from gateway.http.requests import AtOnce
from gateway.http.rounds import ROUNDS, Rounds
from gateway.http.sockets import close_listeners

SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors of accept(2) that pass: the system has no more to give at the moment."""
AGAIN: Final = 0.1
"""Seconds after which it is tried again then."""


class Stop(Protocol):
    """What the loop waits for to stop; a trio.Event is one."""

    async def wait(self) -> object: ...


class Connections:
    """The open connections of one listener group. `working` counts those that answer a request, `stalled` the clients
    cut because they did not read."""

    def __init__(
        self,
        log: Log,
        crashed: Callable[[], object] = lambda: None,
        refused: Callable[[int, str, bool], object] = lambda status, client, begun: None,
    ) -> None:
        self.open: set[Connection] = set()
        self.crashed = crashed
        """Called when a connection, or the answer to a request, ends by a fault of ours."""
        self.on_refused = refused
        """Called with the status and the client's address when the answer was given before there was a whole request:
        it could not be read, or came too slowly, or there are too many connections. `begun`: its head was good, so
        that whoever stands before the app tells of it."""
        self.rounds = Rounds()
        self.working = 0
        self.stalled = 0
        self._log = log
        self._quiet: trio.Event | None = None

    def on_work(self, change: int) -> None:
        self.working += change
        if not self.working and self._quiet is not None:
            self._quiet.set()

    def on_stalled(self) -> None:
        self.stalled += 1
        self._log.info("client_stalled")

    def on_crash(self, exit: Exit) -> None:
        self.crashed()
        self._log.error("request_crashed", exc_info=exit.error)

    async def wait_quiet(self) -> None:
        """Until nothing is being answered."""
        while self.working:
            self._quiet = trio.Event()
            await self._quiet.wait()

    def close_idle(self) -> None:
        """Ends the connections without a request."""
        for connection in list(self.open):
            connection.close_if_idle()


async def serve(
    app: Any,
    listeners: Sequence[socket.socket],
    config: ServeConfig,
    *,
    stop: Stop,
    log: Log,
    connections: Connections | None = None,
    at_once: AtOnce | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves an ASGI app on listening sockets, which it closes, until `stop`. `at_once` is its short way.

    Then no connection is accepted any more but those that were made already, replies say `Connection: close`, and idle
    connections are closed when nothing is being answered any more, or after `config.idle_grace` seconds, if there are
    to be some; `config.stop` seconds later all that is left is cut. When half of that time is over idle connections are
    closed in any case, so that nothing begins on them that could not end.
    """
    edge = EdgeConfig(config)
    context = WorkerContext(None)
    known = connections or Connections(log)

    def wrapped(scope: Any, receive: Any, send: Any, sync_spawn: Any, call_soon: Any) -> Any:
        scope[ROUNDS] = known.rounds
        return app(scope, receive, send)  # hypercorn's ASGIWrapper, without a frame of its own

    def admitted(plain: trio.SocketStream) -> Connection:
        secure = config.tls and trio.SSLStream(plain, config.tls, server_side=True, https_compatible=True)
        connection = Connection(wrapped, edge, context, secure or plain, watcher=known, at_once=at_once)
        known.open.add(connection)
        return connection

    async def attend(connection: Connection) -> None:
        turned_away = len(known.open) > config.connections
        with Boundary() as inside:
            await (connection.turn_away if turned_away else connection.run)()
        known.open.discard(connection)
        if inside.exit.abnormal:
            known.crashed()
            log.error("connection_crashed", exc_info=inside.exit.error)
        del inside  # a crash holds this frame, which would hold the crash

    def take(plain: trio.SocketStream) -> None:
        handlers.start_soon(attend, admitted(plain))

    open_listeners = [_Listener(listener) for listener in listeners]
    async with known.rounds.going(), trio.open_nursery() as handlers:
        async with trio.open_nursery() as accepting:
            for listener in open_listeners:
                accepting.start_soon(listener.run, take, log)
            task_status.started()
            await stop.wait()
            for listener in open_listeners:
                listener.stopping = True
            accepting.cancel_scope.cancel()
        for plain in (plain for listener in open_listeners for plain in listener.left):
            handlers.start_soon(attend, admitted(plain))
        await context.terminated.set()
        idle_grace = config.idle_grace()
        handlers.cancel_scope.deadline = trio.current_time() + idle_grace + config.stop
        if idle_grace:
            await trio.sleep(idle_grace)
            known.close_idle()
        with trio.move_on_after(config.stop / 2):
            await known.wait_quiet()
        known.close_idle()
        await known.wait_quiet()
        known.close_idle()
    close_listeners(listeners)


class _Listener:
    """Closing a listening socket breaks the connections that clients have made and nobody has accepted yet: so at the
    stop they are taken before, and `left`."""

    def __init__(self, listening: socket.socket) -> None:
        self.left: list[trio.SocketStream] = []
        self.stopping = False
        self._socket = listening
        self._inner = trio.SocketListener(trio.socket.from_stdlib_socket(listening))

    async def run(self, take: Callable[[trio.SocketStream], object], log: Log) -> None:
        """Accepts, until it is cancelled. As `trio.serve_listeners`, but that whoever takes a connection closes it, and
        it is not closed by being cancelled once more. That nothing can be accepted is said once, until it can again."""
        told = False
        try:
            while True:
                try:
                    take(await self._inner.accept())
                    told = False
                except OSError as error:
                    if error.errno not in SCARCE:
                        raise
                    if not told:
                        log.warning("accept_failed", why=os.strerror(error.errno), again_in=AGAIN)
                    told = True
                    await trio.sleep(AGAIN)
        finally:
            self._close()

    def _close(self) -> None:
        with suppress(OSError):  # there is no more of them
            while self.stopping:  # else all is being cancelled, and nobody would serve them
                accepted, _ = self._socket.accept()
                accepted.setblocking(False)
                self.left.append(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))
        self._inner.socket.close()
