"""How long what was begun with a token may go on: until the token ends, or its bearer's access is taken away."""

from collections.abc import Awaitable, Callable
from math import inf
from time import time
from typing import Final, TypeAlias

import trio

from actors.ports import Answer, Asker, EventSource, Rights

Again: TypeAlias = Callable[[], Awaitable[Asker | Answer | None]]
"""Who it is by the configuration in force; None: that is the one by which it was told last. An answer: nobody any more,
or (503) it can't be told."""


UNKNOWN: Final = 503
"""The status of an answer to whom that can't be told at the moment."""


async def _as_before() -> None:
    return None


class TokenLife:
    """How long one connection may go on with its token. `withdrawn` says whether the access of somebody was taken away
    since; `wall` is the wall clock, by which tokens end."""

    def __init__(
        self,
        asker: Asker,
        withdrawn: Callable[[Asker], bool],
        wall: Callable[[], float] = time,
        again: Again = _as_before,
    ) -> None:
        self._asker = asker
        self._withdrawn = withdrawn
        self._wall = wall
        self._again = again
        self._refused = False
        self._ends = asker.rights.ends

    @property
    def rights(self) -> Rights:
        """What its token gives, by the configuration by which that was looked at last."""
        return self._asker.rights

    async def others(self) -> bool:
        """Whether its token gives other rights than before, since another configuration is in force."""
        found = await self._again()
        if found is None or (isinstance(found, Answer) and found.status == UNKNOWN):
            return False
        if isinstance(found, Answer) or found.principal != self._asker.principal:
            self._refused = True
            return True
        before, self._asker = self._asker.rights, found
        self._ends = found.rights.ends
        return before.digest != found.rights.digest

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

    def look(self, seconds: float) -> float:
        """After how long it is to be looked at again that is looked at every so many seconds: sooner where the token
        ends before."""
        left = self.left
        return left if 0 < left < seconds else seconds

    @property
    def withdrawn(self) -> bool:
        """Whether the bearer has no access any more."""
        return self._refused or self._withdrawn(self._asker)


class LimitedSource:
    """A stream that ends when its token does: cleanly, so that whoever has a fresh token goes on after the last
    event. `expires`: also with the token, and where that gives other rights by another configuration; the answer to a
    request may come later."""

    def __init__(self, source: EventSource, token_life: TokenLife, *, expires: bool) -> None:
        self._source = source
        self._token_life = token_life
        self._expires = expires

    async def receive(self) -> bytes | None:
        """As in `EventSource`. It is asked again at each keep-alive comment; what comes after the access was taken away
        is not passed on."""
        others = self._expires and await self._token_life.others()
        if others or self._token_life.withdrawn or (self._expires and self._token_life.over):
            return None
        data: bytes | None = None
        with trio.move_on_after(max(0.0, self._token_life.left) if self._expires else inf):
            data = await self._source.receive()
        return None if self._token_life.withdrawn else data

    def close(self) -> None:
        """As in `EventSource`."""
        self._source.close()
