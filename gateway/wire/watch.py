"""Waiting for what comes on many connections, in one task for all of them.

A task weighs more than all else that a connection holds on which nothing is said, and such connections are many.
"""

from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from typing import TypeAlias

import trio

Wake: TypeAlias = Callable[[], object]


class Watch:
    """Calls each `wake` once, when its socket has something to read or has ended. It must neither wait nor raise.

    The task lives in `nursery`, while there is anything to wait for.
    """

    __slots__ = ("_nursery", "_scope", "_selector")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._selector: BaseSelector | None = None
        self._scope: trio.CancelScope | None = None

    def start(self, fd: int, wake: Wake) -> None:
        """Begins to wait; for each socket there is one who does."""
        if self._selector is None:
            self._selector, self._scope = DefaultSelector(), trio.CancelScope()
            self._nursery.start_soon(self._run, self._selector, self._scope)
        self._selector.register(fd, EVENT_READ, wake)

    def stop(self, fd: int) -> None:
        """Waits no more, if it did. To be called before the socket is closed."""
        if self._selector is None or fd not in self._selector.get_map():
            return
        self._selector.unregister(fd)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._selector is not None and self._scope is not None and not self._selector.get_map():
            self._scope.cancel()
            self._selector = self._scope = None

    async def _run(self, selector: BaseSelector, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    await trio.lowlevel.wait_readable(selector)  # type: ignore[arg-type]  # it has a file descriptor
                    for key, _ in selector.select(0):
                        if selector.get_map().get(key.fd) is key:  # else it was stopped by one before it
                            selector.unregister(key.fd)
                            key.data()
                    self._end_if_done()
        finally:
            if self._selector is selector:
                self._selector = self._scope = None
            selector.close()
