"""Sessions that left memory still end when their idle time is over, and with them what the store has of them and the
sessions of their backends.

The process that put a session to rest ends it at its time. It also leaves word of that time with the store: where that
process is no more, another one ends it a little later. (Where none runs, the store forgets the session in the end, and
the backends' own timeouts end theirs.) The record of a session that left memory says when it was last heard of, so that
nobody brings it back too late.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import TypeAlias, assert_never

from actors.ports import DUE_PARTS, UNAVAILABLE, Failed, Grant, Record, SessionKey, ignore
from actors.runtime import Actor, DynamicSupervisor
from actors.services import Services
from actors.upstreams.resume import delete_upstream, read_resumable

ACTIVE = "active"
GRAIN = 1.0
"""Seconds: how exact the end is."""
MOST = 100_000
"""Sessions whose end is waited for, some 25 MB; of any further one the store forgets the record, and no more."""
AT_ONCE = 20
"""Sessions that are ended in one turn, so that many which are due together do not hold others up."""
PAUSE = 0.1
"""Seconds between two turns."""
RETRY = 5.0
"""Seconds after which the store is tried again that was away."""
LATE = 1.0
"""Seconds by which two clocks of one machine may differ in what they measured."""
OTHERS = 30.0
"""Seconds that the process which put a session to rest has to end it, before others do."""
LOOK = 7.3
"""Seconds, about, between two looks for those of others: each time at one part of them."""


def last_activity(wall: float | None) -> dict[str, bytes | None]:
    """The field of the record; None while the session is in memory."""
    return {ACTIVE: repr(wall).encode() if wall is not None else None}


def remaining(fields: Mapping[str, bytes], services: Services) -> float:
    """Seconds until a session that is not in memory has ended, by what its record says."""
    since = fields.get(ACTIVE)
    ttl = services.limits.idle_ttl
    return ttl if since is None else float(since) + ttl - services.wall()


def end(
    key: SessionKey, grant: Grant, record: Record, reason: str, services: Services, upstreams: DynamicSupervisor
) -> None:
    """Ends a session that nobody will rebuild, with the sessions of its backends."""
    table = services.table.value
    for backend, resume in read_resumable(record.fields, key, services.sealer, table).items():
        if resume.kept is not None:
            delete_upstream(services, upstreams, table.backends[backend], resume.kept)
    services.store.end(key, grant, reason, ignore)


@dataclass(frozen=True, slots=True)
class Passivated:
    """A session left memory; it ends after so many seconds if nobody comes."""

    key: SessionKey
    seconds: float


@dataclass(frozen=True, slots=True)
class Returned:
    """It is in memory again."""

    key: SessionKey


@dataclass(frozen=True, slots=True)
class Overdue:
    """Somebody found the record of a session that is over."""

    key: SessionKey


@dataclass(frozen=True, slots=True)
class Orphaned:
    """A session without work, whose owner has died: nobody knows since when it is idle."""

    key: SessionKey


@dataclass(frozen=True, slots=True)
class _Tick:
    """Time to look who is due."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Time to look for those of others."""


@dataclass(frozen=True, slots=True)
class _Found:
    outcome: list[SessionKey] | Failed


@dataclass(frozen=True, slots=True)
class _Read:
    key: SessionKey
    outcome: Record | Failed


@dataclass(frozen=True, slots=True)
class _Claimed:
    key: SessionKey
    outcome: tuple[Grant, Record] | Failed


ExpiryMessage: TypeAlias = Passivated | Returned | Overdue | Orphaned | _Tick | _Look | _Found | _Read | _Claimed


class Expiry(Actor):
    """Permanent. What it forgets in a crash the store forgets by itself, later."""

    mailbox_size = 8192

    def __init__(self, services: Services, upstreams: DynamicSupervisor) -> None:
        self._services = services
        self._upstreams = upstreams
        self._slots: dict[int, set[bytes]] = {}
        self._due: dict[bytes, int] = {}
        self._queue: OrderedDict[SessionKey, None] = OrderedDict()
        self._turn = 0.0
        """When the next turn may be; nothing that comes meanwhile puts it off."""
        self._part = 0
        """Of the sessions of others, which is looked at next."""

    def started(self) -> None:
        self._part = int(self._services.jitter() * DUE_PARTS)
        self._look_later()

    def receive(self, message: ExpiryMessage) -> None:
        match message:
            case Passivated(key, seconds):
                self._services.cluster.due_at(key, self._services.wall() + seconds)
                self._wait(key, seconds)
            case Returned(key):
                self._services.cluster.due_at(key, None)
                self._forget(bytes.fromhex(key))
                self._sleep()
            case Orphaned(key):
                self._services.cluster.due_at(key, self._services.wall() + self._services.limits.idle_ttl)
            case _Look():
                self._look_for_others()
            case _Found(outcome):
                self._found(outcome)
            case Overdue(key):
                self._queue[key] = None
                self._sleep()
            case _Tick():
                self._tick()
            case _Read(key, outcome):
                self._read(key, outcome)
            case _Claimed(key, claimed):
                self._claimed(key, claimed)
            case _:
                assert_never(message)

    def _wait(self, key: SessionKey, seconds: float) -> None:
        packed = bytes.fromhex(key)
        self._forget(packed)
        if len(self._due) < MOST:
            slot = self._due[packed] = int((self.ctx.now() + max(0.0, seconds)) // GRAIN) + 1
            self._slots.setdefault(slot, set()).add(packed)
        self._sleep()

    def _forget(self, key: bytes) -> None:
        slot = self._due.pop(key, None)
        if slot is not None:
            self._slots[slot].discard(key)
            if not self._slots[slot]:
                del self._slots[slot]

    def _sleep(self) -> None:
        """Until the next turn, or the next slot is due."""
        if self._queue:
            self._wake(self._turn - self.ctx.now())
        elif self._slots:
            self._wake(min(self._slots) * GRAIN - self.ctx.now())
        else:
            self.ctx.cancel_timer("tick")

    def _wake(self, seconds: float) -> None:
        self.ctx.set_timer("tick", max(0.0, seconds), _Tick())

    def _tick(self) -> None:
        now = self.ctx.now()
        self._turn = now + PAUSE
        for slot in [s for s in self._slots if s * GRAIN <= now]:
            for key in self._slots.pop(slot):
                del self._due[key]
                self._queue[key.hex()] = None
        for _ in range(min(AT_ONCE, len(self._queue))):
            self._look(self._queue.popitem(last=False)[0])
        self._sleep()

    def _look(self, key: SessionKey) -> None:
        ref = self.ctx.ref
        self._services.store.read(key, lambda out: ref.reply(_Read(key, out)))

    def _look_later(self) -> None:
        self.ctx.set_timer("look", LOOK * (0.5 + self._services.jitter()), _Look())

    def _look_for_others(self) -> None:
        """At one part after the other, so that each replica has little to do at a time."""
        part, self._part = self._part, (self._part + 1) % DUE_PARTS
        ref, before = self.ctx.ref, self._services.wall() - OTHERS
        self._services.cluster.due(part, before, lambda out: ref.reply(_Found(out)))

    def _found(self, outcome: list[SessionKey] | Failed) -> None:
        for key in outcome if not isinstance(outcome, Failed) else ():
            self._queue[key] = None
        self._sleep()
        self._look_later()

    def _read(self, key: SessionKey, outcome: Record | Failed) -> None:
        """It may be in memory again, or have been, or be gone."""
        if isinstance(outcome, Failed):
            self._failed(key, outcome)
            return
        left = remaining(outcome.fields, self._services) if outcome.owner is None else 0.0
        if left > LATE:
            self._services.cluster.due_at(key, self._services.wall() + left)
            self._again(key, left)
            return
        if outcome.owner == self._services.store.owner:
            self._services.cluster.due_at(key, None)  # it is in memory here
            return
        # That of a living owner is refused.
        ref, owner, epoch = self.ctx.ref, outcome.owner, outcome.epoch
        self._services.store.claim(key, owner, epoch, token_hex(8), lambda out: ref.reply(_Claimed(key, out)))

    def _claimed(self, key: SessionKey, outcome: tuple[Grant, Record] | Failed) -> None:
        if isinstance(outcome, Failed):
            self._failed(key, outcome)
        else:
            end(key, *outcome, "idle", self._services, self._upstreams)
            self._services.cluster.due_at(key, None)
            self._services.telemetry.count("stagedoor_sessions_ended_total", ("idle",))

    def _failed(self, key: SessionKey, failed: Failed) -> None:
        """It is gone, or another's; or the store can't say now."""
        if failed.reason in UNAVAILABLE:
            self._again(key, RETRY)
        else:
            self._services.cluster.due_at(key, None)

    def _again(self, key: SessionKey, seconds: float) -> None:
        """Looks later, unless it was in memory since, and is waited for."""
        if bytes.fromhex(key) not in self._due:
            self._wait(key, seconds)
