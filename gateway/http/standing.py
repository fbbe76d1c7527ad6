"""How long what was begun with a token may go on: until the token ends, or its bearer's access is taken away."""

from collections.abc import Callable
from math import inf
from time import time

import trio

from actors.ports import Asker, EventSource, Rights


class Standing:
    """Of one connection. `withdrawn` says whether the access of somebody was taken away since; `wall` is the wall
    clock, by which tokens end."""

    def __init__(self, asker: Asker, withdrawn: Callable[[Asker], bool], wall: Callable[[], float] = time) -> None:
        self._asker = asker
        self._withdrawn = withdrawn
        self._wall = wall
        self._ends = asker.rights.ends

    def renewed(self, rights: Rights) -> None:
        """Its bearer came with another token."""
        if self._ends is not None:
            self._ends = inf if rights.ends is None else max(self._ends, rights.ends)

    @property
    def left(self) -> float:
        """Seconds until the token ends."""
        return inf if self._ends is None else self._ends - self._wall()

    @property
    def over(self) -> bool:
        """Whether it may go on no more."""
        return self.left <= 0 or self.withdrawn

    @property
    def withdrawn(self) -> bool:
        """Whether the bearer has no access any more."""
        return self._withdrawn(self._asker)


class LimitedSource:
    """A stream that ends when its standing does: cleanly, so that whoever has a fresh token goes on after the last
    event. `expires`: also with the token; the answer to a request may come later."""

    def __init__(self, source: EventSource, standing: Standing, *, expires: bool) -> None:
        self._source = source
        self._standing = standing
        self._expires = expires

    async def receive(self) -> bytes | None:
        """As in `EventSource`. It is asked again at each keep-alive comment; what comes after the access was taken away
        is not passed on."""
        if self._standing.withdrawn or (self._expires and self._standing.over):
            return None
        data: bytes | None = None
        with trio.move_on_after(max(0.0, self._standing.left) if self._expires else inf):
            data = await self._source.receive()
        return None if self._standing.withdrawn else data

    def close(self) -> None:
        """As in `EventSource`."""
        self._source.close()
