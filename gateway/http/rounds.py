"""One timer for all connections that are looked after every so many seconds: each in turn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

import trio

from actors.runtime.places import Place

ROUNDS: Final = "stagedoor.rounds"
"""The key of an ASGI scope that has the rounds of whoever serves."""


class Visited(Protocol):
    """What is looked after."""

    keep_alive: float
    """Seconds from one visit to the next. One that is made shorter counts from the next visit on; beside longer ones
    it may come as late as these."""

    def visit(self) -> object:
        """Its turn has come. Nothing here waits."""


class Rounds:
    """Goes from one to the next."""

    def __init__(self) -> None:
        self._due: dict[Visited, float] = {}
        """In the order of their turns: all wait equally long, and whoever was visited is the last again."""
        self._place = Place()

    def add(self, whom: Visited) -> None:
        """It is visited from here on, until `drop`."""
        self._due[whom] = trio.current_time() + whom.keep_alive
        self._place.wake()

    def drop(self, whom: Visited) -> None:
        """It is not any more."""
        self._due.pop(whom, None)

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """For the time of the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            yield
            nursery.cancel_scope.cancel()

    async def _run(self) -> None:
        while True:
            if not self._due:
                await self._place.wait()
                continue
            whom, due = next(iter(self._due.items()))
            if trio.current_time() < due:
                await trio.sleep_until(due)
            else:
                del self._due[whom]
                self._due[whom] = trio.current_time() + whom.keep_alive
                whom.visit()
