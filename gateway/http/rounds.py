"""One timer for all connections that are looked after now and then: each in turn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

import trio

from actors.runtime.places import Place

ROUNDS: Final = "stagedoor.rounds"
"""The key of an ASGI scope that has the rounds of whoever serves."""
LEAST: Final = 0.1
"""Seconds between two visits: what is due by another clock may not be over yet."""


class Visited(Protocol):
    """A connection that is looked after now and then."""

    @property
    def patience(self) -> float:
        """Seconds until the next visit, as far as it is known now."""

    def visit(self) -> object:
        """Its turn has come. Nothing here waits."""


class Rounds:
    """Goes from one connection to the next, with one timer."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int]] = []
        """A heap of visits, of which some are to nobody any more."""
        self._visited: dict[int, Visited] = {}
        self._numbers: dict[Visited, int] = {}
        self._count = count()
        self._place = Place()

    def add(self, whom: Visited) -> None:
        """It is visited from here on, until `drop`."""
        number = self._numbers[whom] = next(self._count)
        self._visited[number] = whom
        self._plan(number, whom)
        if self._due[0][1] == number:
            self._place.wake()

    def drop(self, whom: Visited) -> None:
        """Looks after this connection no more."""
        number = self._numbers.pop(whom, None)
        if number is not None:
            del self._visited[number]

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """For the time of the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run)
            yield
            nursery.cancel_scope.cancel()

    def _plan(self, number: int, whom: Visited) -> None:
        heappush(self._due, (trio.current_time() + max(whom.patience, LEAST), number))

    async def _run(self) -> None:
        while True:
            due = self._due[0][0] if self._due else float("inf")
            if trio.current_time() < due:
                with trio.CancelScope(deadline=due):
                    await self._place.wait()
                continue
            _, number = heappop(self._due)
            whom = self._visited.get(number)
            if whom is not None:
                self._plan(number, whom)
                whom.visit()
