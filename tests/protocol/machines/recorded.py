"""A session of tests whose effects reach a store, and which may be rebuilt from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session import rebuild
from actors.machines.session import record as session_record
from actors.machines.session.state import Rules, Session
from tests.protocol.machines.driving import NEWEST, SessionDriver, plain


class Died(Exception):  # noqa: N818 - it names what happened
    """The process, before this write."""


@dataclass
class Head:
    seq: int
    finished: bool = False
    opener: int = 1


def change(table: dict[str, bytes], changes: Mapping[str, bytes | None]) -> None:
    """As the store changes fields: None deletes."""
    for key, value in changes.items():
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value


@dataclass
class Log:
    """A store: each write is done whole, or not at all and none after it. Appends have to be contiguous."""

    fields: dict[str, bytes] = field(default_factory=lambda: dict(session_record.birth("p", "e")))
    requests: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, bytes] = field(default_factory=dict)
    streams: dict[str, Head] = field(default_factory=dict)
    events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    left: int = 10**9
    """Writes until the process dies."""
    older: bool = False

    def take(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            if isinstance(effect, fx.Save | fx.OpenStream | fx.Append):
                if self.left == 0:
                    raise Died
                self.left -= 1
                self._write(effect)
        return effects

    def _write(self, effect: fx.Save | fx.OpenStream | fx.Append) -> None:
        if isinstance(effect, fx.Save):
            change(self.fields, effect.fields)
        elif isinstance(effect, fx.OpenStream):
            assert effect.stream not in self.streams
            self.streams[effect.stream] = Head(0 if effect.first is None else 1)
            change(self.requests, effect.requests)
        else:
            head = self.streams[effect.stream]
            assert (effect.seq, head.finished) == (head.seq + 1, False)
            if effect.data is not None:
                head.seq += 1
                self.events.setdefault(effect.stream, []).append(plain(effect.data))
            head.finished = effect.finish
            change(self.requests, effect.requests)
            change(self.asked, effect.asked)


class Recorded(SessionDriver):
    """A session whose effects reach a store."""

    def __init__(self, version: str = NEWEST) -> None:
        super().__init__(version)
        self.store = Log()

    def step(self, event: ev.SessionEvent) -> list[Any]:
        return self.store.take(super().step(event))

    def restart(self, *reachable: str) -> list[Any]:
        """Another life, of which the first knows nothing; its effects."""
        fresh = Session(self.session.epoch + 1, Rules())
        self.session, effects = rebuild.rebuild(self.store, fresh, 100.0, reachable)
        self.calls = {id: number for number, id in self.session.calls.items()}
        return self.store.take(effects)
