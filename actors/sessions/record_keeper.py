"""Keeps a session's record up to date: changes are collected, written one write at a time, and tried again while the
store is away. Nothing waits for them but what says so (`then`).
"""

from collections.abc import Callable
from typing import Any

from actors.ports import Deltas, Done, Failed, Grant, Refused, SessionKey
from actors.runtime import Context
from actors.services import Services
from actors.sessions.session_messages import Saved, SaveDue

RETRY = 1.0
"""Seconds between two attempts while the store is away."""


def ignore(outcome: Any) -> None:
    """For what is a hint, or of no interest when it fails."""


class RecordKeeper:
    """For one life of one session."""

    def __init__(self, key: SessionKey, grant: Grant, rev: int, services: Services, ctx: Context) -> None:
        self.grant = grant
        self._key = key
        self._rev = rev
        self._services = services
        self._ctx = ctx
        self._dirty: dict[str, bytes | None] = {}
        self._noted: dict[str, bytes | None] = {}
        self._later: list[Callable[[], object]] = []
        self._then: list[Callable[[], object]] = []
        self._writing: dict[str, bytes | None] | None = None
        self._touched = ctx.now()

    @property
    def settled(self) -> bool:
        """Whether everything is written."""
        return not self._dirty and self._writing is None

    def change(self, fields: dict[str, bytes | None]) -> None:
        """Fields to write; None deletes."""
        self._dirty.update(fields)
        self._noted = {name: value for name, value in self._noted.items() if name not in fields}

    def note(self, fields: dict[str, bytes | None]) -> None:
        """Fields that are written with whatever is written next, for which alone nothing is written."""
        self._noted.update(fields)

    def take_noted(self) -> dict[str, bytes | None]:
        """The caller writes them."""
        noted, self._noted = self._noted, {}
        return noted

    def then(self, act: Callable[[], object]) -> None:
        """Acts when all that has changed so far is written, or can't be since the store is away."""
        if self._dirty:
            self._later.append(act)
        elif self._writing is not None:
            self._then.append(act)
        else:
            act()

    def flush(self) -> None:
        """Writes what has changed, unless a write is under way; else keeps a busy session from expiring."""
        if self._dirty and self._writing is None:
            self._begin()
            return
        now = self._ctx.now()
        if now - self._touched > self._services.limits.idle_ttl / 8:
            self._touched = now
            self._services.store.touch(self._key, self.grant, ignore)

    def _begin(self) -> None:
        self._writing, self._dirty, self._noted = {**(self._writing or {}), **self._noted, **self._dirty}, {}, {}
        self._then += self._later
        self._later = []
        self._rev += 1
        self._write()

    def _act(self) -> None:
        then, self._then = self._then, []
        for act in then:
            act()

    def _write(self) -> None:
        ref = self._ctx.ref
        deltas = Deltas(fields=self._writing or {})
        self._services.store.save(self._key, self.grant, self._rev, deltas, lambda out: ref.reply(Saved(out)))

    def saved(self, outcome: Any) -> Refused | None:
        """What came of it; the reason if the session is lost or another's."""
        if isinstance(outcome, Failed):
            self._services.telemetry.count("stagedoor_store_errors_total", ("save", outcome.reason.value))
            if outcome.reason is Refused.FENCED:
                self._services.telemetry.count("stagedoor_fenced_writes_total")
            if outcome.reason in (Refused.FENCED, Refused.GONE, Refused.ENDED):
                return outcome.reason
            # The same write again: had it been done after all, it counts as a repeat.
            self._ctx.set_timer("save", RETRY, SaveDue())
            self._then += self._later
            self._later = []
            self._act()
            return None
        self._writing = None
        self._touched = self._ctx.now()
        self._act()
        self.flush()
        return None

    def retry(self) -> None:
        """Tries again."""
        if self._writing is not None:
            self._write()

    def release(self, last: dict[str, bytes | None], done: Done = ignore) -> None:
        """Gives the ownership back, after everything that has changed, and these fields."""
        self.change(last)
        # A write that is under way must not be waited for: the store keeps the order.
        self._begin()
        self._services.store.release(self._key, self.grant, done)
