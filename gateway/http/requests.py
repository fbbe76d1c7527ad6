"""Runs the app for the requests of one connection, one after the other, in one task that lives as long as it does.

hypercorn starts a task per request and talks to it through a memory channel; HTTP/1 has one request at a time, so one
task that parks between requests does, and a queue without checkpoints, since its writer (the connection's reader) must
not wait. The queue is bounded by the limit on a request's size.
"""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.task_group import TaskGroup
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope

from actors.runtime.boundary import Boundary
from actors.runtime.exits import Exit
from actors.runtime.places import Place

Send = Callable[[ASGISendEvent | None], Awaitable[None]]
AtOnce = Callable[[Any, bytes], bool]
"""Of an app: takes a request that came whole, by scope and body, where that needs no waiting and the answer is a bare
202. False: it is as if it had not been asked."""


class Inbox:
    """What the app receives of one request. (A list and a cursor: an empty deque weighs as much as all the rest.)"""

    __slots__ = ("_events", "_next", "_waiting")

    def __init__(self, *events: ASGIReceiveEvent) -> None:
        self._events: list[ASGIReceiveEvent | None] = [*events]
        self._next = 0
        self._waiting: trio.Event | None = None

    async def put(self, event: ASGIReceiveEvent) -> None:
        self._events.append(event)
        if self._waiting is not None:
            self._waiting.set()

    async def receive(self) -> ASGIReceiveEvent:
        while self._next == len(self._events):
            self._waiting = trio.Event()
            await self._waiting.wait()
        event, self._events[self._next] = self._events[self._next], None
        self._next += 1
        assert event is not None
        return event


class Requests(TaskGroup):
    """The task group of one connection."""

    def __init__(self, nursery: trio.Nursery, on_crash: Callable[[Exit], None]) -> None:
        super().__init__()
        self._nursery = nursery
        self._on_crash = on_crash
        self._next: tuple[AppWrapper, Scope, Inbox, Send] | None = None
        self._running = False
        self._over = False
        self._place = Place()

    async def spawn_app(
        self, app: AppWrapper, config: Config, scope: Scope, send: Send
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        inbox = Inbox()
        self.run(app, scope, inbox, send)
        return inbox.put

    def run(self, app: AppWrapper, scope: Scope, inbox: Inbox, send: Send) -> None:
        """Has the app answer the next request; the one before it has been answered."""
        self._next = (app, scope, inbox, send)
        if not self._place.wake() and not self._running:
            self._running = True
            cast(trio.Nursery, self._nursery).start_soon(self._run)

    def at_once(self, take: AtOnce, scope: Scope, body: bytes) -> bool | None:
        """Whether the app has taken a request without being run for it; None: it crashed."""
        with Boundary() as inside:
            return take(scope, body)
        self._on_crash(inside.exit)
        return None

    def end(self) -> bool:
        """No more requests come: whether nothing is being answered, so that the task ends by itself. (To be cancelled
        costs a task several times as much.)"""
        self._over = not self._running or self._place.wake()
        return self._over

    async def _run(self) -> None:
        while not self._over:
            while self._next is not None:
                (app, scope, inbox, send), self._next = self._next, None
                with Boundary() as inside:
                    await app(scope, inbox.receive, send, trio.to_thread.run_sync, trio.from_thread.run)
                if inside.exit.abnormal:
                    self._on_crash(inside.exit)
                await send(None)
                del app, scope, inbox, send, inside
            await self._place.wait()
