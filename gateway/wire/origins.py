"""Who gets which connection to one origin.

Every decision is synchronous: a place (the right to have one connection open) is counted in `open`, and it is handed
over, with the connection or without, in the same step in which it is given up. A waiter that is cancelled after it was
served gives back what it got.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import trio

from gateway.wire.errors import NoRoomError, PoolFullError


class Pooled(Protocol):
    """What is pooled. `idle_since` is written by the pool."""

    idle_since: float

    @property
    def idle_at_most(self) -> float:
        """Seconds for which it can be idle and still be used again."""

    def is_usable(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Pooled)


class _Waiter(Generic[C]):
    __slots__ = ("connection", "served")

    def __init__(self) -> None:
        self.served = trio.Event()
        self.connection: C | None = None


class OriginPool(Generic[C]):
    """The connections to one origin: at most `connections` open, `idle` of them kept for `idle_time` seconds."""

    __slots__ = ("_closed", "_connections", "_idle_max", "_idle_time", "_wait", "_waiters", "_waiting", "idle", "open")

    def __init__(self, *, connections: int, waiting: int, wait: float, idle: int, idle_time: float) -> None:
        self._connections = connections
        self._waiting = waiting
        self._wait = wait
        self._idle_max = idle
        self._idle_time = idle_time
        self._waiters: deque[_Waiter[C]] = deque()
        self._closed = False
        self.idle: deque[C] = deque()
        self.open = 0

    def __repr__(self) -> str:
        return f"<open {self.open}, idle {len(self.idle)}, waiting {len(self._waiters)}>"

    def take_idle(self) -> C | None:
        """The connection used last that is still good; those found bad are closed."""
        now = trio.current_time() if self.idle else 0.0
        while self.idle:
            connection = self.idle.pop()
            if now - connection.idle_since < connection.idle_at_most and connection.is_usable():
                return connection
            self.discard(connection)
        return None

    @property
    def has_room(self) -> bool:
        """Whether there may be one more."""
        return self.open < self._connections and not self._closed

    def part_with_idle(self) -> C | None:
        """The same, for good: its place is given up."""
        connection = self.take_idle()
        if connection is not None:
            self._give_up_place()
        return connection

    def take_in(self, connection: C) -> None:
        """An idle connection that was another pool's, and has been idle since then."""
        self.open += 1
        self._put(connection)

    async def acquire(self, connect: Callable[[], Awaitable[C]]) -> C:
        """An idle connection, a fresh one, or one that came free while waiting for a place. Raises PoolFullError, and
        what `connect` raises."""
        if (connection := self.take_idle()) is not None:
            return connection
        if self.open < self._connections:
            self.open += 1
            try:
                return await self._connect(connect)
            except NoRoomError:
                if not self.open:
                    raise  # nothing here can come free
        if (connection := await self._queue()) is not None:
            if connection.is_usable():
                return connection
            connection.close()  # its place is ours
        return await self._connect(connect)

    async def _connect(self, connect: Callable[[], Awaitable[C]]) -> C:
        """A fresh connection in a place that is ours."""
        settled = False
        try:
            connection = await connect()
            settled = True
            return connection
        except NoRoomError:
            settled = True
            self.open -= 1  # whoever waits could do no more with it
            raise
        finally:
            if not settled:
                self._give_up_place()

    def release(self, connection: C) -> None:
        """The connection can be used again, if its peer keeps it at all."""
        if connection.idle_at_most <= 0:
            self.discard(connection)
            return
        connection.idle_since = trio.current_time()
        self._put(connection)

    def _put(self, connection: C) -> None:
        if self._waiters:
            self._serve(connection)
            return
        self.expire(connection.idle_since)
        if self._closed or len(self.idle) >= self._idle_max:
            self.discard(connection)
            return
        self.idle.append(connection)

    def discard(self, connection: C) -> None:
        """The connection is of no use any more."""
        connection.close()
        self._give_up_place()

    def drop(self, connection: C) -> None:
        """An idle connection has ended. (One that is not idle is being handed to somebody, who will look himself.)"""
        if connection in self.idle:
            self.idle.remove(connection)
            self.discard(connection)

    def close(self) -> None:
        """Closes the idle ones; those in use are closed when they are released."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes those that nobody uses."""
        while self.idle:
            self.discard(self.idle.pop())

    def expire(self, now: float) -> None:
        """Closes those that have been idle for too long."""
        while self.idle and self.idle[0].idle_since + self._idle_time < now:
            self.discard(self.idle.popleft())

    def _give_up_place(self) -> None:
        if self._waiters:
            self._serve(None)
        else:
            self.open -= 1

    def _serve(self, connection: C | None) -> None:
        waiter = self._waiters.popleft()
        waiter.connection = connection
        waiter.served.set()

    async def _queue(self) -> C | None:
        """Waits for a place; with a connection in it, or without (None)."""
        if len(self._waiters) >= self._waiting:
            raise PoolFullError(f"{self._waiting} requests wait for {self._connections} connections already")
        waiter = _Waiter[C]()
        self._waiters.append(waiter)
        taken = False
        try:
            with trio.move_on_after(self._wait):
                await waiter.served.wait()
                taken = True
                return waiter.connection
        finally:
            if not taken:
                self._withdraw(waiter)
        raise PoolFullError(f"no connection of {self._connections} came free within {self._wait:g} s")

    def _withdraw(self, waiter: _Waiter[C]) -> None:
        if not waiter.served.is_set():
            self._waiters.remove(waiter)
        elif waiter.connection is not None:
            self.release(waiter.connection)
        else:
            self._give_up_place()
