"""How long what was begun with a token may go on: until the token ends, or its bearer's access is taken away."""

from collections.abc import Callable
from math import inf
from time import time

import trio

from actors.ports import Asker, EventSource, Revocations, Rights


class Standing:
    """Of one connection. `wall` is the wall clock, by which tokens end."""

    def __init__(self, asker: Asker, revocations: Revocations | None = None, wall: Callable[[], float] = time) -> None:
        self._asker = asker
        self._revocations = revocations
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
        return self.left <= 0 or self.revoked

    @property
    def revoked(self) -> bool:
        """Whether the bearer has no access any more."""
        return self._revocations is not None and self._revocations.revoked(self._asker)


class LimitedSource:
    """A stream that ends when its standing does: cleanly, so that whoever has a fresh token goes on after the last
    event. `expires`: also with the token; the answer to a request may come later."""

    def __init__(self, source: EventSource, standing: Standing, *, expires: bool) -> None:
        self._source = source
        self._standing = standing
        self._expires = expires

    async def receive(self) -> bytes | None:
        """As in `EventSource`. It is asked again at each keep-alive comment."""
        if self._standing.revoked or (self._expires and self._standing.over):
            return None
        if not self._expires or self._standing.left == inf:
            return await self._source.receive()
        with trio.move_on_after(max(0.0, self._standing.left)):
            return await self._source.receive()
        return None

    def close(self) -> None:
        """As in `EventSource`."""
        self._source.close()
