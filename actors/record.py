"""Who owns what a process holds: a record in the store, which one life at a time writes.

Sessions, and connections that hold a client's hidden state, are owned by the life whose grant is the recorded one. Here
a life comes to own its record, writes what changes (one write at a time, tried again while the store is away), keeps it
from expiring, claims it again under the next name of its process, writes it again where the store has lost it, and
gives it up. Nothing waits for the store but what says so (`then`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from actors.machines.session.record import Fields, reads
from actors.ports import (
    UNAVAILABLE,
    Deltas,
    Done,
    Failed,
    Grant,
    Incarnation,
    Record,
    Refused,
    Replica,
    SessionKey,
    ignore,
)
from actors.runtime import EMPTY_TABLE, Context, put
from actors.services import Services

RETRY = 1.0
"""Seconds between two attempts while the store is away."""

ATTEMPTS = 3
"""Times that the record may be gone, or another's, between two looks at it."""

FINAL = (Refused.FENCED, Refused.GONE, Refused.ENDED)
"""It is another's, or there is none any more."""

NEVER = -1
"""No term of a process."""

LOSSES = (Refused.FENCED, Refused.GONE, Refused.SEQ)
"""So too a write is refused if the store has lost the record, or something of it."""

NO_FIELDS: Mapping[str, bytes] = {}
NO_NAMES: frozenset[str] = frozenset()


def apply(table: dict[str, bytes], changes: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """A part of a record with these changes, made in place if that can be (see `put`)."""
    for name, value in changes.items():
        if value is None:
            table.pop(name, None)
        else:
            table = put(table, name, value)
    return table


def reader(key: SessionKey, version: int, replicas: list[Replica] | Failed, me: Incarnation) -> Incarnation | None:
    """Another replica that lives and can read a record of this version, the same each time; None if there is none, or
    nobody can tell."""
    known = [] if isinstance(replicas, Failed) else replicas
    others = (one for one in known if one.alive and one.incarnation != me)
    able = sorted(one.incarnation for one in others if reads(one.info.get("schema"), version))
    return able[int(key[:8], 16) % len(able)] if able else None


Step: TypeAlias = Literal["create", "read", "claim", "reread", "reclaim", "restore", "save", "touch"]


class Stored(Struct, frozen=True):
    """What came of a step with the store; `record`: whose, for an actor that had one before."""

    step: Step
    outcome: Any
    record: Any = None


class SaveDue(Struct, frozen=True):
    """Time to try a write again."""


class Renamed(Struct, frozen=True):
    """A new term has begun, perhaps under another name: what the process owns is to be claimed again."""


class Life(Protocol):
    """Whose record it is, as far as the store may lose it."""

    def content(self, grant: Grant) -> Record:
        """What is known of the record besides its fields."""

    def surely_lost(self) -> bool:
        """Whether a record that is gone when it is claimed again was lost by the store, and did not end elsewhere."""


class OwnedRecord:
    """The record of one life of one actor, which passes on Stored and SaveDue. All methods are synchronous."""

    __slots__ = (
        "_attempts",
        "_ctx",
        "_fields",
        "_known",
        "_later",
        "_names",
        "_nonce",
        "_noted",
        "_restoring",
        "_rev",
        "_services",
        "_then",
        "_writing",
        "changed",
        "grant",
        "key",
        "life",
        "lost",
        "other",
        "owned",
        "touched",
    )

    grant: Grant
    """Once it is owned."""

    def __init__(self, key: SessionKey, services: Services, ctx: Context) -> None:
        self.owned = False
        """Whether it may be written. (While it is claimed again, it may not.)"""
        self.lost: Refused | None = None
        """Why it can't be owned, or is not any more."""
        self.changed: Fields = EMPTY_TABLE
        """What is to be written."""
        self.touched = ctx.now()
        """When the store last heard that this life goes on."""
        self.other: Incarnation | None = None
        """Who owned it when that was last known."""
        self.life: Life | None = None
        """None: it can't be restored."""
        self.key = key
        self._services = services
        self._known: dict[str, bytes] = EMPTY_TABLE
        """The fields as they are, or are about to be, in the store."""
        self._restoring = False
        self._ctx = ctx
        self._rev = 0
        self._attempts = 0
        self._fields: dict[str, bytes] = EMPTY_TABLE
        self._noted: Fields = EMPTY_TABLE
        self._later: tuple[Callable[[], object], ...] = ()
        self._then: tuple[Callable[[], object], ...] = ()
        self._writing: Fields | None = None
        self._nonce = ""
        self._names = NO_NAMES
        """Under which this process may have come to own it."""

    def _told(self, step: Step) -> Done:
        """Passes the outcome of a step on to the actor, which hands it over (`heard`)."""
        ref = self._ctx.ref
        return lambda out: ref.reply(Stored(step, out, self))

    # Coming to own it

    def own(self, grant: Grant, rev: int = 0, fields: Mapping[str, bytes] = NO_FIELDS) -> None:
        """It was created, or claimed at this revision, under this grant, with these fields."""
        self.owned, self.grant, self._rev = True, grant, rev
        self._known = dict(fields)

    def acquire(self, fields: dict[str, bytes]) -> None:
        """Creates the record with these fields, or takes it over from a life that crashed (the store knows who is
        alive). Stored is passed on until it is `owned` or `lost`."""
        self._attempts = self._attempts + 1 if self.lost is None else 1
        self.lost, self.other = None, None
        self._fields = fields
        self._services.store.create(self.key, fields, self._told("create"))

    def _acquired(self, grant: Grant, rev: int) -> None:
        self.own(grant, rev)
        self.other = None
        self.change(dict(self._fields))
        self.flush()

    def _claim(self, record: Record) -> None:
        self._services.store.claim(self.key, record.owner, record.epoch, token_hex(8), self._told("claim"))

    def distrust(self) -> None:
        """It has to be claimed again, though no new term has begun."""
        self.grant = replace(self.grant, term=NEVER)

    def reclaim(self, owner: str | None) -> None:
        """Claims it from this owner: a former incarnation of this process, or nobody, for it was given back. Until it
        is `owned` again nothing is written. Where the store is away nothing has changed, and it may be tried again."""
        self.owned, self._nonce = False, self._nonce or token_hex(8)
        self._names |= {self.grant.owner, self._services.cluster.incarnation}
        self._claim_from(owner, self.grant.epoch)

    def _claim_from(self, owner: str | None, epoch: int) -> None:
        self._services.store.claim(self.key, owner, epoch, self._nonce, self._told("reclaim"), lives=True)

    def _reclaim_failed(self, failed: Failed) -> None:
        """It may be this process all the same, by a claim of which nothing was heard."""
        if failed.reason is Refused.FENCED:
            self._services.store.read(self.key, self._told("reread"))
        elif failed.reason is Refused.GONE and self.life is not None and self.life.surely_lost():
            self._write_whole(self.life.content(self.grant))
        elif failed.reason not in UNAVAILABLE:
            self.lost = failed.reason
        else:
            self._act_unwritten()

    def _reread(self, record: Record) -> None:
        if record.owner in self._names and record.epoch > self.grant.epoch:
            self._claim_from(record.owner, record.epoch)
        elif record.epoch < self.grant.epoch and self.life is not None:
            self._write_whole(self.life.content(self.grant))  # the store has lost a claim of this process
        else:
            self.lost, self.other = Refused.FENCED, record.owner

    def heard(self, message: Stored) -> None:
        """Takes the outcome of a step, and goes on to the next one."""
        match message.step, message.outcome:
            case "reclaim", (Grant() as grant, Record()):
                self.owned, self.grant, self._nonce = True, grant, ""
                self.write()
            case "reclaim", Failed() as failed:
                self._reclaim_failed(failed)
            case "reread", Record() as record:
                self._reread(record)
            case "reread", Failed(reason) if reason in UNAVAILABLE:
                self._act_unwritten()
            case "create", Grant() as grant:
                self._acquired(grant, 0)
            case "create", Failed(Refused.EXISTS):
                self._services.store.read(self.key, self._told("read"))
            case "read", Record() as record:
                self.other = record.owner
                self._claim(record)
            case "claim", (Grant() as grant, Record(rev=rev)):
                self._acquired(grant, rev)
            case "read" | "claim", Failed(Refused.GONE | Refused.FENCED) if self._attempts < ATTEMPTS:
                self.acquire(self._fields)
            case "save" | "touch", Failed(reason):
                self._refused(message.step, reason)
            case "restore", outcome:
                self._restored(outcome)
            case _, Failed(reason):
                self.lost = reason
            case "save", _:
                self._written()
            case "touch", _:
                pass  # it is as it was
            case _:
                raise AssertionError(f"{message.step} never comes to {message.outcome}")

    # Writing

    @property
    def over(self) -> bool:
        """Whether the record is lost for this process."""
        return self.lost is not None

    @property
    def settled(self) -> bool:
        """Whether everything is written."""
        return not self.changed and self._writing is None

    def change(self, fields: Fields) -> None:
        """Fields to write, with the next `flush`."""
        self.changed = {**self.changed, **fields}
        if self._noted:
            self._noted = {name: value for name, value in self._noted.items() if name not in fields}

    def note(self, fields: Fields) -> None:
        """Fields that are written with whatever is written next, for which alone nothing is written."""
        self._noted = {**self._noted, **fields}

    def take_noted(self) -> Fields:
        """Gives the changes that were noted to whoever writes them."""
        noted, self._noted = self._noted, EMPTY_TABLE
        self._known = apply(self._known, noted)
        return noted

    def then(self, act: Callable[[], object]) -> None:
        """Acts when all that has changed so far is written, or can't be since the store is away."""
        if not self.owned:
            act()
        elif self.changed:
            self._later += (act,)
        elif self._writing is not None:
            self._then += (act,)
        else:
            act()

    def flush(self) -> None:
        """Writes what has changed, unless a write is under way."""
        if self.owned and self.changed and self._writing is None:
            self._write_all()

    def _write_all(self) -> None:
        self._writing = {**(self._writing or {}), **self._noted, **self.changed}
        self.changed = self._noted = EMPTY_TABLE
        self._known = apply(self._known, self._writing)
        self._then += self._later
        self._later = ()
        self._rev += 1
        self.write()

    def write(self) -> None:
        """Once more, what is not known to be written. Had it been done after all, it counts as a repeat."""
        if self.owned and self._writing is not None:
            deltas = Deltas(fields=self._writing)
            self._services.store.save(self.key, self.grant, self._rev, deltas, self._told("save"))

    def _written(self) -> None:
        self._writing = None
        self.touched = self._ctx.now()
        self._act()
        self.flush()

    def _refused(self, step: str, reason: Refused) -> None:
        self._services.telemetry.count("stagedoor_store_errors_total", ("save", reason.value))
        if reason is Refused.FENCED:
            self._services.telemetry.count("stagedoor_fenced_writes_total")
        if reason in LOSSES:
            self.restore(reason)
        elif reason in FINAL:
            self.lost = reason
        elif step == "save":
            self._ctx.set_timer("save", RETRY, SaveDue())
            self._act_unwritten()

    def _act_unwritten(self) -> None:
        """The store is away."""
        self._then += self._later
        self._later = ()
        self._act()

    def _act(self) -> None:
        then, self._then = self._then, ()
        for act in then:
            act()

    # The store has lost what it had acknowledged

    def restore(self, reason: Refused) -> bool:
        """A write was refused for this reason. It may be that the store has lost the record, or what was written to it
        last, which is then written again; False, and it is `lost`, where that can't be: it is another's, or gone. Where
        it is claimed again, or is about to be, that says what has become of it."""
        if not self.owned or self.grant.owner != self._services.cluster.incarnation:
            return True
        if self.life is None:
            self.lost = reason
        elif not self._restoring:
            self._write_whole(self.life.content(self.grant))
        return self.lost is None

    def _write_whole(self, content: Record) -> None:
        self._restoring = True
        record = replace(content, fields=dict(self._known))
        self._services.store.restore(self.key, self.grant, self._rev, record, self._told("restore"))

    def _restored(self, outcome: Failed | None) -> None:
        self._restoring = False
        if outcome is None and not self.owned:
            self.reclaim(self.grant.owner)  # it was written under the former name
        elif outcome is None:
            self.write()
        elif outcome.reason in UNAVAILABLE:
            self._ctx.set_timer("save", RETRY, SaveDue())
            self._act_unwritten()
        else:
            self.lost = outcome.reason

    # Keeping it, and giving it up

    def keep(self) -> None:
        """Keeps the record from expiring, if no write does."""
        if self.owned and self._writing is None:
            self.touched = self._ctx.now()
            self._services.store.touch(self.key, self.grant, self._told("touch"))

    def release(self, last: Fields, done: Done = ignore, *, work: bool = False) -> None:
        """Gives the ownership back, after everything that has changed, and these fields. `work`: as in the store."""
        self.change(last)
        # A write that is under way must not be waited for: the store keeps the order.
        self._write_all()
        self._services.store.release(self.key, self.grant, done, work=work)

    def delete(self) -> None:
        """Nobody will need it again; the next life may begin anywhere."""
        if self.owned and self.lost is None:
            self._services.store.delete(self.key, self.grant, ignore)
