"""The record of a broker: that this process owns what it holds, in words that every process understands.

The connections of a broker hold a backend's hidden state, so they are owned like sessions are: one life at a time,
named by its grant. A record goes with its broker; it says nothing that would be needed again.
"""

from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from actors.ports import Deltas, Failed, Grant, Record, Refused, SessionKey
from actors.runtime import Context
from actors.services import Services

ATTEMPTS = 3
"""Times that the record may be gone, or another's, between two looks at it."""

RETRY = 5.0
"""Seconds after which the store is tried again that was away."""

FINAL = (Refused.FENCED, Refused.GONE, Refused.ENDED)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of a step with the store: `create`, `read`, `claim`, or `keep`."""

    step: str
    outcome: Any


@dataclass(frozen=True, slots=True)
class KeepDue:
    """Time to say that this life goes on."""


class BrokerRecord:
    """For one life of one broker, which gives it Recorded and KeepDue. Nothing here waits."""

    def __init__(self, key: SessionKey, fields: dict[str, bytes], services: Services, ctx: Context) -> None:
        self.grant: Grant | None = None
        """Of this life, once it is owned."""
        self.lost = ""
        """Why it is not, or not any more."""
        self._key = key
        self._fields = fields
        self._services = services
        self._ctx = ctx
        self._rev = 0
        self._saved = False
        self._attempts = 0

    def open(self) -> None:
        """Asks for the ownership; Recorded follows, until `grant` or `lost` is there."""
        self._attempts += 1
        ref = self._ctx.ref
        self._services.store.create(self._key, self._fields, lambda out: ref.reply(Recorded("create", out)))

    def heard(self, message: Recorded) -> None:
        """One step further."""
        match message.step, message.outcome:
            case "create", Grant() as grant:
                self._own(grant, 0)
            case "create", Failed(Refused.EXISTS):
                ref = self._ctx.ref
                self._services.store.read(self._key, lambda out: ref.reply(Recorded("read", out)))
            case "read", Record() as record:
                self._claim(record)
            case "claim", (Grant() as grant, Record(rev=rev)):
                self._own(grant, rev)
            case "read" | "claim", Failed(Refused.GONE | Refused.FENCED) if self._attempts < ATTEMPTS:
                self.open()
            case "keep", None:
                self._saved = True
                self._ctx.set_timer("keep", self._services.limits.idle_ttl / 8, KeepDue())
            case "keep", Failed(reason) if reason not in FINAL:
                self._ctx.set_timer("keep", RETRY, KeepDue())
                self._services.telemetry.count("stagedoor_store_errors_total", ("save", reason.value))
            case _, Failed(reason):
                self.lost = reason.value

    def _claim(self, record: Record) -> None:
        """Its owner crashed. (The store knows who is alive.)"""
        ref = self._ctx.ref
        self._services.store.claim(
            self._key, record.owner, record.epoch, token_hex(8), lambda out: ref.reply(Recorded("claim", out))
        )

    def _own(self, grant: Grant, rev: int) -> None:
        self.grant = grant
        self._rev = rev + 1
        self.keep()

    def keep(self) -> None:
        """Keeps the record from expiring."""
        assert self.grant is not None
        ref, store = self._ctx.ref, self._services.store

        def kept(outcome: Any) -> None:
            ref.reply(Recorded("keep", outcome))

        if self._saved:
            store.touch(self._key, self.grant, kept)
        else:
            store.save(self._key, self.grant, self._rev, Deltas(fields=self._fields), kept)

    def delete(self) -> None:
        """This life is over; the next one may begin anywhere."""
        if self.grant is not None and not self.lost:
            self._services.store.delete(self._key, self.grant, _ignore)


def _ignore(outcome: Any) -> None:
    """Nobody waits for this."""
