"""Tasks of 2025-11-25 of one session: those that servers run for its client, and those that its client runs for them.

A connection of the session's own passes them; over one that is shared, the server could not tell whose they are. Only
what was made in this session can be asked about in it. It is in the session's record: a task may outlive the process
that it was made through.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.machines.session import effects as fx
from actors.machines.upstream.events import ServerInfo
from actors.protocol import capabilities, errors, tasks
from actors.protocol import payload as json
from actors.protocol.messages import RequestId
from actors.protocol.naming import Owner
from actors.protocol.subjects import CALL
from actors.protocol.versions import can_use
from actors.runtime import EMPTY_TABLE, put
from actors.upstreams.messages import UpstreamOutcome, UpstreamRequest

if TYPE_CHECKING:
    from actors.endpoints.session_endpoint import SessionEndpoint

TASKS_MAX = 256
"""Tasks of servers that one session remembers; the oldest is forgotten first."""
ID_BYTES = 512
"""Of one of their ids; a longer one is not remembered, for they are in the session's record."""
FIELD = "tasks"
"""Of the record."""

Fields = Mapping[str, bytes]


class _Recorded(msgspec.Struct):
    """Id → backend, of tasks that servers run, and of those that the client does. Of the former, `tools`: id → tool,
    and `tokens`: id → the client's progress token."""

    made: dict[str, str] = {}
    ran: dict[str, str] = {}
    tools: dict[str, str] = {}
    tokens: dict[str, RequestId] = {}


class TaskRegistry:
    """Remembers the tasks of one session, and whose they are."""

    __slots__ = ("_endpoint", "_made", "_prefixed", "_ran", "_tokens", "_tools")

    def __init__(self, endpoint: "SessionEndpoint") -> None:
        self._endpoint = endpoint
        self._prefixed = endpoint.naming.merges
        """Whether there are several servers: their tasks are known by other ids here."""
        self._made: dict[str, str] = EMPTY_TABLE
        self._tools: dict[str, str] = EMPTY_TABLE
        """By task, where a policy wants to know."""
        self._tokens: dict[str, RequestId] = EMPTY_TABLE
        """By task, where its client wants to hear of its progress."""
        self._ran = tasks.NO_TASKS

    def load(self, fields: Fields) -> None:
        """What an earlier life of the session knew."""
        if FIELD in fields:
            recorded = msgspec.json.decode(fields[FIELD], type=_Recorded)
            self._made, self._ran = recorded.made, tasks.ClientTasks(recorded.ran)
            self._tools, self._tokens = recorded.tools, recorded.tokens

    def _save(self) -> None:
        recorded = _Recorded(self._made, self._ran.owners, self._tools, self._tokens)
        self._endpoint.host.save({FIELD: msgspec.json.encode(recorded)})

    def offers(self, backend: str, server_info: ServerInfo) -> bool:
        """Whether what a backend says of tasks may be said to the client."""
        mine = can_use(self._endpoint.host.version, "tasks") and can_use(server_info.version, "tasks")
        return mine and not self._endpoint.upstreams.shares(backend)

    def runs_none(self, backend: str) -> bool:
        """Whether it is known that the client can have no task of this server, whatever others at its endpoint can."""
        server_info = self._endpoint.server_info(backend)
        if server_info is None:
            return False
        server = capabilities.parse(server_info.capabilities)
        return not (self.offers(backend, server_info) and tasks.may_augment(server, server_info.version, CALL))

    # The client asks

    def dispatch(self, effect: fx.Dispatch) -> None:
        """Handles a request about a task."""
        endpoint = self._endpoint
        try:
            backend, id = self._whose(effect, tasks.target(effect.params))
            params = json.replace_members(effect.params, {"taskId": json.dumps(id)})
        except errors.Malformed as malformed:
            endpoint.refuse(effect.call, malformed.error)
        except errors.Refusal as refused:
            endpoint.refuse(effect.call, refused.error)
        else:
            if effect.method == tasks.RESULT and endpoint.merged is not None:
                endpoint.merged.exposes(effect.call, "tools/call")  # which is what its result is of
            endpoint.send(effect, backend, params)

    def _whose(self, effect: fx.Dispatch, id: str) -> Owner:
        """Refusal (-32602) for a task that was not made in this session, or of what its client may not see, and
        (-32601) for what its server can't do."""
        method, guard = effect.method, self._endpoint.guard
        served, backend = self._endpoint.upstreams.served, self._made.get(id)
        if served is not None and not self._prefixed:
            self._check_can(served.backends[0], method)  # what its server lacks, lacks the endpoint
        if backend is None or served is None or backend not in served.backends:
            raise errors.Refusal(tasks.unknown())
        if not guard.asking(effect.rights, lambda: guard.shows_task(backend, self._tools.get(id, ""))):
            raise errors.Refusal(tasks.unknown())
        self._check_can(backend, method)
        return tasks.resolve(id, served.backends) if self._prefixed else Owner(backend, id)

    def _check_can(self, backend: str, method: str) -> None:
        """Refusal (-32601) for what a server that is connected can't do."""
        server_info = self._endpoint.upstreams.server_infos.get(backend)
        if server_info is not None:
            refusal = tasks.refusal(capabilities.parse(server_info.capabilities), server_info.version, method)
            if refusal is not None or not self.offers(backend, server_info):
                raise errors.Refusal(refusal or errors.method_not_found(method))

    def knows(self, backend: str, params: Raw) -> bool:
        """Whether what a server tells of a task is of one that this client could ask about. Others are the gateway's,
        which runs tools as tasks for clients without any."""
        id = self._mine(backend, params)
        return id is None or id in self._made

    def _mine(self, backend: str, params: Raw) -> str | None:
        """The client's id of the task that a server tells of; None: it is about none."""
        id = tasks.subject(params)
        return tasks.expose(backend, id) if self._prefixed and id is not None else id

    def progress(self, backend: str, params: Raw) -> Raw | None:
        """The progress of a task under the client's token; None: nobody wants it."""
        token = self._tokens.get(self._mine(backend, params) or "")
        return None if token is None else json.replace_members(params, {"progressToken": json.dumps(token)})

    def shows(self, backend: str, params: Raw) -> bool:
        """Whether a client may hear what has become of a task of this server."""
        tool = self._tools.get(self._mine(backend, params) or "")
        return tool is None or self._endpoint.guard.shows_task(backend, tool)

    def shows_mine(self, params: Raw) -> bool:
        """The same, by the client's id of the task."""
        id = tasks.subject(params) or ""
        backend, tool = self._made.get(id), self._tools.get(id)
        return backend is None or tool is None or self._endpoint.guard.shows_task(backend, tool)

    def outcome(
        self, method: str, message: UpstreamOutcome, tool: str = "", token: RequestId | None = None
    ) -> UpstreamOutcome:
        """The outcome of a call that is about a task, or may have made one, as the client sees it. `tool`: what was
        called, where a policy wants to know; `token`: under which its client wants to hear of its progress."""
        if not message.ok or not can_use(self._endpoint.host.version, "tasks"):
            return message
        backend, payload = message.backend, message.payload
        if self._prefixed:
            payload = self._renamed(method, backend, payload)
        made = tasks.created(payload) if method in tasks.AUGMENTED else None
        if made is not None and len(made.encode()) <= ID_BYTES:
            self._made = put(self._made, made, backend)
            if tool:
                self._tools = put(self._tools, made, tool)
            if token is not None:
                self._tokens = put(self._tokens, made, token)
            if len(self._made) > TASKS_MAX:
                oldest = next(iter(self._made))
                del self._made[oldest]
                self._tools.pop(oldest, None)
                self._tokens.pop(oldest, None)
            self._save()
        return replace(message, payload=payload)

    def _renamed(self, method: str, backend: str, payload: Raw) -> Raw:
        try:
            return tasks.result_renamed(method, payload, lambda id: tasks.expose(backend, id))
        except errors.Malformed:
            return payload

    # A server asks, or tells

    def refusal(self, message: UpstreamRequest) -> errors.ProtocolError | None:
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
        return exposed(backend, method, params, self._ran.owners) if self._prefixed else params

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


def exposed(backend: str, method: str, params: Raw, mine: Collection[str] = ()) -> Raw:
    """What one of several servers asks or tells, with its tasks under the ids that clients know them by; `mine`: tasks
    that the client runs."""
    if method in tasks.ASKING:
        return params
    try:
        return tasks.params_renamed(method, params, lambda id: id if id in mine else tasks.expose(backend, id))
    except errors.Malformed:
        return params
