"""What a server does beside answering: it runs in one of its sessions, and goes over to another when that one ends."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

BackgroundFunction: TypeAlias = Callable[[], Awaitable[object]]


class Background:
    """Such a function. Every session runs it; those whose turn it is not wait."""

    def __init__(self, function: BackgroundFunction) -> None:
        self._function = function
        self._turn = trio.Lock()

    async def run(self) -> None:
        """Until it is cancelled. Whatever the function raises."""
        async with self._turn:
            await self._function()
