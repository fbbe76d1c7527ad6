"""Tasks of 2025-11-25 of one session: those that servers run for its client, and those that its client runs for them.

A connection of the session's own passes them; over one that is shared, the server could not tell whose they are. Only
what was made in this session can be asked about in it. It is in the session's record: a task may outlive the process
that it was made through.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.links.link_messages import LinkAsked, LinkOutcome
from actors.protocol import capabilities, errors, tasks
from actors.protocol import effects as fx
from actors.protocol import payload as json
from actors.protocol.link_events import Hello
from actors.protocol.naming import Owner
from actors.protocol.versions import can_use

if TYPE_CHECKING:
    from actors.fronts.front import Front

TASKS_MAX = 256
"""Tasks of servers that one session remembers; the oldest is forgotten first."""
ID_BYTES = 512
"""Of one of their ids; a longer one is not remembered, for they are in the session's record."""
FIELD = "tasks"
"""Of the record."""

Fields = Mapping[str, bytes]


class _Noted(NamedTuple):
    method: str
    backend: str


class _Recorded(msgspec.Struct):
    """Id → backend, of tasks that servers run, and of those that the client does."""

    made: dict[str, str] = {}
    ran: dict[str, str] = {}


class FrontTasks:
    """Of one front. `prefixed`: there are several servers, and their tasks are known by other ids here."""

    def __init__(self, front: "Front", *, prefixed: bool) -> None:
        self._front = front
        self._prefixed = prefixed
        self._made: dict[str, str] = {}
        self._ran = tasks.ClientTasks()
        self._calls: dict[int, _Noted] = {}

    def load(self, fields: Fields) -> None:
        """What an earlier life of the session knew."""
        if FIELD in fields:
            recorded = msgspec.json.decode(fields[FIELD], type=_Recorded)
            self._made, self._ran = recorded.made, tasks.ClientTasks(recorded.ran)

    def _save(self) -> None:
        self._front.host.save({FIELD: msgspec.json.encode(_Recorded(self._made, self._ran.owners))})

    def offers(self, backend: str, hello: Hello) -> bool:
        """Whether what a backend says of tasks may be said to the client."""
        mine = can_use(self._front.host.version, "tasks") and can_use(hello.version, "tasks")
        return mine and not self._front.shares(backend)

    # The client asks

    def dispatch(self, effect: fx.Dispatch) -> bool:
        """A request about a task; False if it was refused."""
        front = self._front
        try:
            backend, id = self._whose(effect.method, tasks.target(effect.params))
            params = json.replace_members(effect.params, {"taskId": json.dumps(id)})
        except errors.Malformed as malformed:
            front.refuse(effect.call, malformed.error)
        except errors.Refusal as refused:
            front.refuse(effect.call, refused.error)
        else:
            if front.call(effect.call, backend, effect.method, params, effect.progress):
                return True
            front.refuse_linkless(effect.call, backend)
        return False

    def _whose(self, method: str, id: str) -> Owner:
        """Refusal (-32602) for a task that was not made in this session, and (-32601) for what its server can't do."""
        served, backend = self._front.served, self._made.get(id)
        if backend is None or served is None or backend not in served.backends:
            raise errors.Refusal(tasks.unknown())
        hello = self._front.hellos.get(backend)
        refusal = tasks.refusal(capabilities.parse(hello.capabilities), hello.version, method) if hello else None
        if refusal is not None:
            raise errors.Refusal(refusal)
        return tasks.resolve(id, served.backends) if self._prefixed else Owner(backend, id)

    def notes(self, call: int, backend: str, method: str, params: Raw) -> None:
        """A call is made: its result may be about a task."""
        about = method in tasks.ASKING or (method in tasks.AUGMENTED and json.mentions(params, b'"task"'))
        if about and call > 0 and can_use(self._front.host.version, "tasks"):
            self._calls[call] = _Noted(method, backend)

    def forget(self, call: int) -> None:
        """It will not be known what became of the call."""
        self._calls.pop(call, None)

    def outcome(self, message: LinkOutcome) -> LinkOutcome:
        """The outcome of a call, as the client sees it."""
        noted = self._calls.pop(message.call, None)
        if noted is None or not message.ok:
            return message
        payload = message.payload
        if self._prefixed:
            payload = self._renamed(noted, payload)
        made = tasks.created(payload) if noted.method in tasks.AUGMENTED else None
        if made is not None and len(made.encode()) <= ID_BYTES:
            self._made[made] = noted.backend
            if len(self._made) > TASKS_MAX:
                del self._made[next(iter(self._made))]
            self._save()
        return replace(message, payload=payload)

    def _renamed(self, noted: _Noted, payload: Raw) -> Raw:
        try:
            return tasks.result_renamed(noted.method, payload, lambda id: tasks.expose(noted.backend, id))
        except errors.Malformed:
            return payload

    # A server asks, or tells

    def refusal(self, message: LinkAsked) -> errors.ProtocolError | None:
        """Why a server may not ask this: it is about a task of the client that is not its own."""
        if message.method not in tasks.ASKING:
            return None
        try:
            self._ran.check(message.backend, message.params)
        except errors.Malformed as malformed:
            return malformed.error
        except errors.Refusal as refused:
            return refused.error
        return None

    def exposed(self, backend: str, method: str, params: Raw) -> Raw:
        """What a server asks or tells, with the client's ids of its tasks; the client's own tasks keep theirs."""
        if not self._prefixed or method in tasks.ASKING:
            return params
        try:
            return tasks.params_renamed(
                method, params, lambda id: id if id in self._ran.owners else tasks.expose(backend, id)
            )
        except errors.Malformed:
            return params

    def answered(self, backend: str, method: str | None, payload: Raw) -> Raw:
        """The client's result for a server: if it is a task, it is that server's."""
        if method in tasks.AUGMENTED:
            ran = self._ran.made(backend, payload)
            if ran is not self._ran and len((tasks.created(payload) or "").encode()) <= ID_BYTES:
                self._ran = ran
                self._save()
        if not self._prefixed:
            return payload
        prefix = backend + tasks.SEPARATOR
        try:
            return tasks.params_renamed("", payload, lambda id: id.removeprefix(prefix))
        except errors.Malformed:
            return payload

    def hears_of(self, params: Raw) -> str | None:
        """The server to which the status of a task of the client goes."""
        try:
            return self._ran.owner(params)
        except errors.Malformed:
            return None
