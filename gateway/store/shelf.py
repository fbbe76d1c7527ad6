"""`Shelf` in memory: it ends with the process."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

import trio

from actors.ports import Failed, Refused, Shelved

MOST: Final = 100_000
"""Values kept; those that would end first give way."""
GIVE_WAY: Final = 1000
"""So many at once: to find them all values are looked at."""

FENCED = Failed(Refused.FENCED)


@dataclass(slots=True)
class _Place:
    shelved: Shelved | None = None
    ends: float = 0.0
    locked: str = ""
    until: float = 0.0


class MemoryShelf:
    """See `Shelf`. `now` is the clock of the store."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._places: dict[str, _Place] = {}
        self._names: dict[str, None] = {}

    async def read(self, key: str, *, keep: float = 0.0) -> Shelved | Failed | None:
        await trio.lowlevel.checkpoint()
        place = self._at(key)
        if place.shelved is not None and place.shelved.value:
            place.ends = max(place.ends, self._now() + keep)
        return place.shelved

    async def put(self, key: str, value: bytes, seconds: float, *, instead: str | None = None) -> str | Failed:
        await trio.lowlevel.checkpoint()
        place = self._at(key)
        if instead is not None and (place.shelved.tag if place.shelved is not None else "") != instead:
            return FENCED
        place.shelved = Shelved(value, secrets.token_hex(8))
        place.ends = self._now() + seconds
        self._places[key] = place
        if len(self._places) > MOST:
            for first in nsmallest(GIVE_WAY, self._places, key=lambda other: self._places[other].ends):
                del self._places[first]
        return place.shelved.tag

    async def take(self, key: str) -> Shelved | Failed | None:
        await trio.lowlevel.checkpoint()
        shelved = self._at(key).shelved
        self._places.pop(key, None)
        return shelved

    async def lock(self, key: str, who: str, seconds: float) -> bool | Failed:
        await trio.lowlevel.checkpoint()
        place = self._at(key)
        if place.locked not in ("", who) and place.until > self._now():
            return False
        place.locked, place.until = who, self._now() + seconds
        self._places[key] = place
        return True

    async def unlock(self, key: str, who: str) -> None:
        await trio.lowlevel.checkpoint()
        place = self._at(key)
        if place.locked == who:
            place.locked = ""
            if place.shelved is None:
                self._places.pop(key, None)

    async def names(self) -> Sequence[str] | Failed:
        await trio.lowlevel.checkpoint()
        return list(self._names)

    async def name(self, name: str, *, there: bool) -> None:
        await trio.lowlevel.checkpoint()
        if there:
            self._names[name] = None
        else:
            self._names.pop(name, None)

    def sweep(self, now: float) -> None:
        """Forgets what has ended."""
        for key in [k for k, p in self._places.items() if max(p.ends, p.until) <= now]:
            del self._places[key]

    def _at(self, key: str) -> _Place:
        place = self._places.get(key, _Place())
        if place.shelved is not None and place.ends <= self._now():
            place.shelved = None
        return place
