"""A tool whose calls wait for the test."""

from __future__ import annotations

import trio

from tests.interaction.backend import Backend, Request, text
from tests.support.wire_client import Message


class Held:
    """A tool whose calls wait until they are released."""

    def __init__(self, backend: Backend, name: str = "held") -> None:
        self.requests: list[Request] = []
        self._backend = backend
        self._go = trio.lowlevel.ParkingLot()
        self._released: set[int] = set()

        @backend.tool(name)
        async def held(request: Request) -> Message:
            number = len(self.requests)
            self.requests.append(request)
            backend.changed.unpark_all()
            while number not in self._released:
                await self._go.park()
            return text(str(request.arguments.get("who")))

    async def running(self, count: int = 1) -> Request:
        """The so-manieth call."""
        with trio.fail_after(10):
            while len(self.requests) < count:
                await self._backend.changed.park()
        return self.requests[count - 1]

    def release(self, *numbers: int) -> None:
        """These calls, counted from 0, are answered."""
        self._released.update(numbers)
        self._go.unpark_all()
