"""Keeps a session's record up to date: changes are collected, written one write at a time, and tried again while the
store is away. Nothing waits for them but what says so.
"""

from typing import Any

from actors.ports import Deltas, Failed, Grant, Refused, SessionKey
from actors.runtime import Context
from actors.services import Services
from actors.session_messages import Saved, SaveDue

RETRY = 1.0
"""Seconds between two attempts while the store is away."""


class RecordKeeper:
    """For one life of one session."""

    def __init__(self, key: SessionKey, grant: Grant, rev: int, services: Services, ctx: Context) -> None:
        self.grant = grant
        self._key = key
        self._rev = rev
        self._services = services
        self._ctx = ctx
        self._dirty: dict[str, bytes | None] = {}
        self._writing: dict[str, bytes | None] | None = None
        self._touched = ctx.now()

    @property
    def settled(self) -> bool:
        """Whether everything is written."""
        return not self._dirty and self._writing is None

    def change(self, fields: dict[str, bytes | None]) -> None:
        """Fields to write; None deletes."""
        self._dirty.update(fields)

    def flush(self) -> None:
        """Writes what has changed, unless a write is under way; else keeps a busy session from expiring."""
        if self._dirty and self._writing is None:
            self._writing, self._dirty = self._dirty, {}
            self._rev += 1
            self._write()
            return
        now = self._ctx.now()
        if now - self._touched > self._services.limits.idle_ttl / 8:
            self._touched = now
            self._services.store.touch(self._key, self.grant, ignore)

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
            return None
        self._writing = None
        self._touched = self._ctx.now()
        self.flush()
        return None

    def retry(self) -> None:
        """Tries again."""
        if self._writing is not None:
            self._write()

    def release(self) -> None:
        """Gives the ownership back, after everything that has changed."""
        if self._dirty:
            # Nobody will hear of the write that is under way, and the next one must not wait for that: the store keeps
            # the order.
            self._writing, self._dirty = {**(self._writing or {}), **self._dirty}, {}
            self._rev += 1
            self._write()
        self._services.store.release(self._key, self.grant, ignore)


def ignore(outcome: Any) -> None:
    """For what is a hint, or of no interest when it fails."""
