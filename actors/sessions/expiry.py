"""Sessions that left memory still end when their idle time is over, and with them what the store has of them and the
sessions of their backends.

When that is, is written down in the store, beside the record: no process keeps anything of a session at rest. Each
looks there now and then, and one of them ends what is due. (Where none runs, the store forgets the session in the end,
and the backends' own timeouts end theirs.) The record of a session that left memory says when it was last heard of, so
that nobody brings it back too late.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from secrets import token_hex
from typing import TypeAlias, assert_never

from msgspec import Struct

from actors.named import NamedRef
from actors.ports import DUE_PARTS, UNAVAILABLE, Done, Failed, Grant, Record, Refused, SessionKey, ignore
from actors.runtime import Actor, DynamicSupervisor, Ref
from actors.services import Services
from actors.streams.recorder import handle
from actors.upstreams.resume import delete_upstream, read_resumable

ACTIVE = "active"
AT_ONCE = 20
"""Sessions that are ended in one turn, so that many which are due together do not hold others up."""
PAUSE = 0.1
"""Seconds between two turns."""
ASKED_AGAIN = 5.0
"""Seconds until the store is asked again that could not say whether it has recorded an end."""
UNSURE = 4096
"""Such ends that are remembered."""
LATE = 1.0
"""Seconds by which two replicas may differ in what the clock of the store says."""
LOOK = 17.3
"""Seconds, about, between two looks for those that are due: so exact is their end."""


def last_activity(time: float | None) -> dict[str, bytes | None]:
    """The field of the record, by the clock of the store; None while the session is in memory."""
    return {ACTIVE: repr(time).encode() if time is not None else None}


def remaining(fields: Mapping[str, bytes], services: Services) -> float:
    """Seconds until a session that is not in memory has ended, by what its record says."""
    since = fields.get(ACTIVE)
    ttl = services.limits.idle_ttl
    return ttl if since is None else float(since) + ttl - services.cluster.now()


def rests(key: SessionKey, seconds: float, services: Services) -> None:
    """A session left memory; it ends after so many seconds if nobody comes. (Written at once, for in a drain sessions
    leave when the actor below is gone.)"""
    services.cluster.due_at(key, services.cluster.now() + seconds)


class Ending(Struct, frozen=True):
    """The end of a session, by whoever had it under this grant."""

    key: SessionKey
    grant: Grant
    principal: str
    endpoint: str
    reason: str
    at_rest: bool = False
    """It was in nobody's memory, who would have counted its end."""


def record_end(ending: Ending, services: Services, expiry: Ref | NamedRef, done: Done = ignore) -> None:
    """Has the store record an end, which is told when it is recorded. Where the store can't say whether it is, that is
    asked again until it can: under the same grant nothing is ended that goes on elsewhere, or was ended by others."""

    def recorded(outcome: Failed | None) -> None:
        if not isinstance(outcome, Failed):
            tell_end(ending, services)
            if ending.at_rest:
                services.telemetry.count("stagedoor_sessions_ended_total", (ending.reason,))
        elif outcome.reason in UNAVAILABLE:
            expiry.reply(Unsure(ending))
        done(outcome)

    services.store.end(ending.key, ending.grant, ending.reason, recorded)


def end(
    key: SessionKey,
    grant: Grant,
    record: Record,
    reason: str,
    services: Services,
    upstreams: DynamicSupervisor,
    expiry: Ref | NamedRef,
    done: Done = ignore,
) -> None:
    """Ends a session that nobody will rebuild, with the sessions of its backends."""
    table = services.table.value
    for backend, resume in read_resumable(record.fields, key, services.sealer, table).items():
        if resume.kept is not None:
            delete_upstream(services, upstreams, table.backends[backend], resume.kept)
    principal, endpoint = (record.fields.get(name, b"").decode() for name in ("principal", "endpoint"))
    record_end(Ending(key, grant, principal, endpoint, reason, at_rest=True), services, expiry, done)


def tell_end(ending: Ending, services: Services) -> None:
    """Writes it into the audit trail."""
    if services.audit.on:
        where = {"endpoint": ending.endpoint} if ending.endpoint else {}
        who = {"principal": ending.principal, "session": handle(ending.key), "era": "legacy"}
        services.audit.record("session.end", reason=ending.reason, **who, **where)


class Returned(Struct, frozen=True):
    """It is in memory again."""

    key: SessionKey


class Overdue(Struct, frozen=True):
    """Somebody found the record of a session that is over."""

    key: SessionKey


class Orphaned(Struct, frozen=True):
    """A session without work, whose owner has died: nobody knows since when it is idle."""

    key: SessionKey


class Unsure(Struct, frozen=True):
    """The store can't say whether it has recorded this."""

    ending: Ending


class _AskAgain(Struct, frozen=True):
    """Time to ask it."""


class _Tick(Struct, frozen=True):
    """Time to end some more."""


class _Look(Struct, frozen=True):
    """Time to look who is due."""


class _Due(Struct, frozen=True):
    keys: list[SessionKey]


class _Read(Struct, frozen=True):
    key: SessionKey
    outcome: Record | Failed


class _Claimed(Struct, frozen=True):
    """`theirs`: if another owns it, that one is to end it."""

    key: SessionKey
    outcome: tuple[Grant, Record] | Failed
    theirs: bool


class _Ended(Struct, frozen=True):
    key: SessionKey
    outcome: Failed | None


ExpiryMessage: TypeAlias = (
    Returned | Overdue | Orphaned | Unsure | _AskAgain | _Tick | _Look | _Due | _Read | _Claimed | _Ended
)


class Expiry(Actor):
    """Ends the sessions whose idle time is over. Permanent. When that is stands in the store, where every replica finds
    it."""

    mailbox_size = 8192

    def __init__(self, services: Services, upstreams: DynamicSupervisor) -> None:
        self._services = services
        self._upstreams = upstreams
        self._queue: OrderedDict[SessionKey, None] = OrderedDict()
        self._unsure: OrderedDict[Ending, None] = OrderedDict()
        self._turn = 0.0
        """When the next turn may be; nothing that comes meanwhile puts it off."""

    def started(self) -> None:
        self._look_later()

    def receive(self, message: ExpiryMessage) -> None:
        match message:
            case Returned(key):
                self._queue.pop(key, None)
                self._services.cluster.due_at(key, None)
            case Orphaned(key):
                rests(key, self._services.limits.idle_ttl, self._services)
            case Overdue(key):
                self._add([key])
            case Unsure(ending):
                self._ask_later(ending)
            case _AskAgain():
                self._ask_again()
            case _Look():
                self._look()
            case _Due(keys):
                self._add(keys)
            case _Tick():
                self._tick()
            case _Read(key, outcome):
                self._read(key, outcome)
            case _Claimed(key, claimed, theirs):
                self._claimed(key, claimed, theirs=theirs)
            case _Ended(key, recorded):
                self._ended(key, recorded)
            case _:
                assert_never(message)

    def _look_later(self) -> None:
        self.ctx.set_timer("look", LOOK * (0.5 + self._services.jitter()), _Look())

    def _look(self) -> None:
        """Many that are in hand come first; a few always are, where somebody comes back late."""
        now = self._services.cluster.now()
        for part in range(DUE_PARTS if len(self._queue) < AT_ONCE else 0):
            self._services.cluster.due(part, now, self._came)
        self._look_later()

    def _came(self, outcome: list[SessionKey] | Failed) -> None:
        if outcome and not isinstance(outcome, Failed):
            self.ctx.ref.reply(_Due(outcome))

    def _add(self, keys: Iterable[SessionKey]) -> None:
        for key in keys:
            self._queue[key] = None
        self._go_on()

    def _go_on(self) -> None:
        if self._queue:
            self.ctx.set_timer("tick", max(0.0, self._turn - self.ctx.now()), _Tick())

    def _tick(self) -> None:
        self._turn = self.ctx.now() + PAUSE
        for _ in range(min(AT_ONCE, len(self._queue))):
            key, _ = self._queue.popitem(last=False)
            self._services.store.read(key, partial(self._found, key))
        self._go_on()

    def _found(self, key: SessionKey, outcome: Record | Failed) -> None:
        self.ctx.ref.reply(_Read(key, outcome))

    def _read(self, key: SessionKey, outcome: Record | Failed) -> None:
        """It may be in memory again, or have been, or be gone. One that was claimed, and where no life has begun since
        (nobody has heard of that claim), is at rest still."""
        if isinstance(outcome, Failed):
            self._failed(key, outcome)
            return
        owner, at_rest = outcome.owner, outcome.owner is None or ACTIVE in outcome.fields
        left = remaining(outcome.fields, self._services) if at_rest else 0.0
        if left > LATE:
            rests(key, left, self._services)
        elif owner == self._services.store.owner and not at_rest:
            self._services.cluster.due_at(key, None)  # it is in memory here
        else:
            # That of a living owner is refused.
            ref, theirs = self.ctx.ref, at_rest and owner is not None
            claimed = partial(_Claimed, key, theirs=theirs)
            self._services.store.claim(key, owner, outcome.epoch, token_hex(8), lambda out: ref.reply(claimed(out)))

    def _claimed(self, key: SessionKey, outcome: tuple[Grant, Record] | Failed, *, theirs: bool) -> None:
        if isinstance(outcome, Failed):
            if not (theirs and outcome.reason is Refused.FENCED):
                self._failed(key, outcome)
        else:
            ref = self.ctx.ref
            end(key, *outcome, "idle", self._services, self._upstreams, ref, lambda out: ref.reply(_Ended(key, out)))

    def _ended(self, key: SessionKey, outcome: Failed | None) -> None:
        if isinstance(outcome, Failed):
            self._failed(key, outcome)
            return
        self._services.cluster.due_at(key, None)

    def _failed(self, key: SessionKey, failed: Failed) -> None:
        """It is gone, or another's; or the store can't say now, and is asked again. One that can't be read here is for
        those who can."""
        if failed.reason not in (*UNAVAILABLE, Refused.TOO_NEW):
            self._services.cluster.due_at(key, None)

    def _ask_later(self, ending: Ending) -> None:
        if not self._unsure:
            self.ctx.set_timer("ask again", ASKED_AGAIN, _AskAgain())
        self._unsure[ending] = None
        if len(self._unsure) > UNSURE:
            self._unsure.popitem(last=False)

    def _ask_again(self) -> None:
        for _ in range(min(AT_ONCE, len(self._unsure))):
            ending, _ = self._unsure.popitem(last=False)
            record_end(ending, self._services, self.ctx.ref)
        if self._unsure:
            self.ctx.set_timer("ask again", PAUSE, _AskAgain())
