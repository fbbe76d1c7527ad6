"""What the record of a session holds of its connections: enough to go on with its backends' sessions over others.

One field for each backend (`b:`), written when its session begins or is lost, and one for where its GET stream
stands (`e:`), which goes with whatever is written next. The backend's session id is sealed; it opens only for the
same session, backend and address. A session that nobody will go on with is deleted at its backend
(`delete_upstream`).
"""

from collections.abc import Mapping
from typing import Protocol, assert_never

import msgspec
from msgspec import Raw, Struct

from actors.machines.session.record import Fields
from actors.machines.upstream.events import ServerInfo
from actors.ports import Resumable, Sealer, SessionKey
from actors.protocol.table import BackendSpec, HttpTarget, Replaced, Table, Target
from actors.runtime import EMPTY_SET, EMPTY_TABLE, Actor, AtCapacity, DynamicSupervisor, SystemClosed, TaskEnded, put
from actors.services import Services
from actors.upstreams.messages import Recount


class Resume(Struct, frozen=True):
    """What an upstream connection begins with that takes over from an earlier one. Without `kept` the backend's
    session is gone with that one, and what is left to do is to announce what may have been missed."""

    server_info: ServerInfo | None = None
    kept: Resumable | None = None
    target: Target | None = None
    """Where the session is."""


class _Field(msgspec.Struct, omit_defaults=True):
    version: str = ""
    capabilities: Raw = Raw(b"{}")
    session: str = ""


_BOUND = msgspec.json.encode(_Field())
"""There was a connection, and its session can't be had again."""


def movable(spec: BackendSpec) -> bool:
    """Whether the backend's session outlives a connection to it."""
    return isinstance(spec.target, HttpTarget)


def read_resumable(fields: Mapping[str, bytes], key: SessionKey, sealer: Sealer, table: Table) -> dict[str, Resume]:
    """The connections of a record, by backend, as far as they are configured now."""
    found = {}
    for name, value in fields.items():
        spec = table.backends.get(name[2:]) if name.startswith("b:") else None
        if spec is not None and not spec.common:
            cursor = fields.get(f"e:{spec.name}")
            found[spec.name] = _resume(value, cursor.decode() if cursor is not None else None, key, sealer, spec)
    return found


def unconfigured(fields: Mapping[str, bytes], table: Table) -> list[str]:
    """The servers to which a record has connections, and which are not configured now."""
    return sorted(name[2:] for name in fields if name.startswith("b:") and name[2:] not in table.backends)


def _resume(value: bytes, cursor: str | None, key: SessionKey, sealer: Sealer, spec: BackendSpec) -> Resume:
    field = msgspec.json.decode(value, type=_Field)
    session = sealer.unseal(field.session, _context(key, spec)) if field.session else None
    if session is None:
        return Resume()
    server_info = ServerInfo(field.version, Raw(bytes(field.capabilities)), Raw(b"{}"), None, Raw(b"{}"))
    return Resume(server_info, Resumable(session.decode() or None, field.version, cursor), spec.target)


def _context(key: SessionKey, spec: BackendSpec) -> bytes:
    """What a sealed session id is good for."""
    url = spec.target.url if isinstance(spec.target, HttpTarget) else ""
    return "\0".join(("link", key, spec.name, url)).encode()


class Recorded(Protocol):
    """The session, as far as it has a record."""

    def save(self, fields: Fields) -> None:
        """Writes these soon."""

    def note(self, fields: Fields) -> None:
        """Writes these with whatever is written next."""


class ResumableUpstreams:
    """Keeps in the record of one session what its connections need to go on in its next life."""

    __slots__ = ("_key", "_placed", "_sealer", "_session", "_taken", "_waiting", "_written")

    def __init__(self, key: SessionKey, sealer: Sealer, session: Recorded) -> None:
        self._key = key
        self._sealer = sealer
        self._session = session
        self._waiting: dict[str, Resume] = EMPTY_TABLE
        self._taken: dict[str, Resume] = EMPTY_TABLE
        """Upstream connections begin with these, and are not up yet."""
        self._written: dict[str, tuple[str | None, str] | None] = EMPTY_TABLE
        """By backend: its session id and revision; None: there is no session that could be kept."""
        self._placed: frozenset[str] = EMPTY_SET
        """Backends whose GET stream has ids, as far as it is known."""

    def load(self, fields: Mapping[str, bytes], table: Table) -> None:
        """Begins with what an earlier life left."""
        self._waiting = read_resumable(fields, self._key, self._sealer, table) or EMPTY_TABLE

    @property
    def reachable(self) -> frozenset[str]:
        """The backends whose sessions go on."""
        return frozenset(backend for backend, resume in self._waiting.items() if resume.kept is not None)

    @property
    def lasting(self) -> frozenset[str]:
        """The backends whose sessions go on, or will if this life leaves."""
        return self.reachable | {backend for backend, value in self._written.items() if value is not None}

    @property
    def seamless(self) -> bool:
        """Whether another life misses nothing that servers send outside of calls meanwhile."""
        return all(value is not None and backend in self._placed for backend, value in self._written.items())

    def take(self, spec: BackendSpec) -> Resume | None:
        """What the session's first upstream connection to a backend begins with."""
        resume = self._waiting.pop(spec.name, None)
        if resume is None:
            return None
        if resume.target != spec.target:
            resume = Resume()  # the backend is elsewhere now: its session is none of this one's business
        kept = resume.kept
        value = (kept.session, kept.version) if kept is not None else None
        self._written = put(self._written, spec.name, value)
        self._taken = put(self._taken, spec.name, resume)
        return resume

    def version(self, backend: str) -> str | None:
        """The revision of the backend's session, as soon as there is an upstream connection that has it."""
        written = self._written.get(backend)
        return written[1] if written is not None else None

    def unopened(self, table: Table) -> list[tuple[BackendSpec, Resumable]]:
        """Sessions of backends to which this life has had no connection, as far as those are still there; they are the
        caller's from here on."""
        left = self._waiting | self._taken
        self._waiting = self._taken = EMPTY_TABLE
        found = [(table.backends.get(backend), resume) for backend, resume in left.items()]
        return [(s, r.kept) for s, r in found if s is not None and r.kept is not None and r.target == s.target]

    def ready(self, spec: BackendSpec, server_info: ServerInfo, kept: Resumable | None) -> None:
        """An upstream connection is up."""
        self._taken.pop(spec.name, None)
        self._waiting, self._taken = self._waiting or EMPTY_TABLE, self._taken or EMPTY_TABLE
        value = (kept.session, kept.version) if kept is not None else None
        if spec.name in self._written and self._written[spec.name] == value:
            return
        self._written = put(self._written, spec.name, value)
        field = _BOUND
        if kept is not None:
            sealed = self._sealer.seal((kept.session or "").encode(), _context(self._key, spec))
            field = msgspec.json.encode(_Field(kept.version, server_info.capabilities, sealed))
        self._session.save({f"b:{spec.name}": field, f"e:{spec.name}": None})

    def moved(self, backend: str, cursor: str | None) -> None:
        """The GET stream of a backend stands elsewhere."""
        if (backend in self._placed) is not bool(cursor):
            self._placed ^= {backend}
        if self._written.get(backend) is not None:
            self._session.note({f"e:{backend}": cursor.encode() if cursor else None})

    def lost(self, backend: str) -> None:
        """A connection that was up is lost, and with it the session; the next one announces what was missed."""
        if self._written.get(backend) is not None:
            self._written[backend] = None
            self._session.save({f"b:{backend}": _BOUND, f"e:{backend}": None})


class UpstreamDelete(Actor):
    """Deletes one session at its backend, over a connection made for it. Temporary: as long as the transport
    takes to close, which is bounded."""

    mailbox_size = 4

    def __init__(self, spec: BackendSpec, services: Services, kept: Resumable) -> None:
        self._spec = spec
        self._services = services
        self._kept = kept

    def started(self) -> None:
        transport = self._services.connector.connect(self._spec, _ignore)
        transport.resume(self._kept)
        transport.close()
        self.ctx.start_task("delete", transport.run)

    def receive(self, message: TaskEnded | Recount | Replaced) -> None:
        match message:
            case TaskEnded():
                self.ctx.stop()
            case Recount() | Replaced():
                pass  # it is no connection that anybody uses
            case _:
                assert_never(message)


def delete_upstream(services: Services, upstreams: DynamicSupervisor, spec: BackendSpec, kept: Resumable) -> None:
    """Has a session ended in the background. Where there is no room for that, the backend's own timeout ends it."""
    if kept.session is None:
        return
    try:
        upstreams.start_child(UpstreamDelete(spec, services, kept))
    except (AtCapacity, SystemClosed):
        services.telemetry.count("stagedoor_backend_sessions_left_total", (spec.name,))


def _ignore(event: object) -> None:
    """Nobody waits for this."""
