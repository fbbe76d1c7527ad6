"""What stands before the door where somebody observes requests: each POST gets a watch, and each request an operation.
Where somebody traces them, so does the way back to a stream.

The door says what it has read, the actors say how requests end, and what neither says is seen in the reply. The trace
that a request belongs to is in its `_meta` from here on, within the gateway as on every wire: in letters to other
replicas too. What is answered by a stream that no actor of this process brings (another replica's, a subscription) ends
with the stream.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec import Raw, Struct, field, json
from msgspec.structs import replace

from actors.durations import ShownTools
from actors.gate import EVENT_HEADER, SESSION_HEADER
from actors.modern.requests import refused
from actors.ports import NO_AUDIT, Answer, Audit, Delete, Door, EventSource, Get, Post, Reply, Streaming, Telemetry
from actors.protocol import codec, errors, operations, trail
from actors.protocol.errors import BROKEN, Malformed
from actors.protocol.headers import VERSION_HEADER
from actors.protocol.messages import EMPTY, Request, RequestId
from actors.protocol.meta import names_version
from actors.protocol.operations import Audited, Observer, Operation
from actors.protocol.payload import text_or_none
from actors.protocol.rights import Rights
from actors.protocol.trace_context import NOTHING_CARRIED, Carried, carried, carrying, parse
from actors.sessions.router import session_key
from actors.streams.recorder import handle

ITEM_CHARACTERS: Final = 512
"""Of the name or the URI of what is asked for."""
KEPT: Final = 1024
"""Bytes of params that are kept for the line on a request."""
ROOM_WITHIN: Final = 2.0
"""Seconds that a request waits for room in the audit trail."""


class _Said(Struct):
    """What a request says; each member by itself, so that nobody hides what he asks for behind another one that can't
    be read."""

    name: Raw = EMPTY
    uri: Raw = EMPTY
    task: Raw = field(default=EMPTY, name="taskId")
    ref: Raw = EMPTY
    arguments: Raw = EMPTY

    def subject(self, method: str) -> str:
        """What it is about."""
        member = self.name if method in _BY_NAME else self.task if method in _OF_TASKS else self.uri
        return text_or_none(member or self._of_ref()) or ""

    def _of_ref(self) -> Raw:
        """What arguments are completed for."""
        found = _read(self.ref)
        return found.name or found.uri


_BY_NAME: Final = frozenset({"tools/call", "prompts/get"})
_OF_TASKS: Final = frozenset({"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"})
_NOTHING_SAID: Final = _Said()
_decode: Final[Callable[[Raw], _Said]] = json.Decoder(_Said).decode


def _read(params: Raw) -> _Said:
    try:
        return _decode(params) if params else _NOTHING_SAID
    except BROKEN:
        return _NOTHING_SAID


def _asked(audit: Audit, method: str, params: Raw) -> tuple[str, Any]:
    """What a request is about, and what may be written of its arguments."""
    said = _read(params)
    return said.subject(method)[:ITEM_CHARACTERS], audit.arguments(bytes(said.arguments)) if said.arguments else None


def _audited(
    audit: Audit, principal: str, rights: Rights, peer: str, method: str, params: bytes | tuple[str, Any]
) -> Audited:
    """Who asks, and for what, by the params or what was read of them."""
    item, args = _asked(audit, method, Raw(params)) if isinstance(params, bytes) else params
    return Audited(principal, rights.issuer, rights.client, peer, item, args)


class WatchedDoor:
    """Implements the port `Door` by another one."""

    def __init__(
        self, door: Door, observer: Observer, shown: ShownTools, telemetry: Telemetry, audit: Audit = NO_AUDIT
    ) -> None:
        self._door = door
        self._telemetry = telemetry
        self._observer = observer
        self._shown = shown
        self._audit = audit

    async def post(self, post: Post) -> Reply:
        """A POST. Where it could not be written down what becomes of it, it is refused."""
        if self._audit.full and not await self._audit.room(ROOM_WITHIN):
            self._telemetry.count("stagedoor_messages_rejected_total", ("audit_full",))
            return _unrecordable(post.body)
        watch = PostWatch(self._observer, self._shown, post, self._audit)
        reply: Reply | None = None
        try:
            reply = await self._door.post(replace(post, watch=watch))
        finally:
            if reply is None:
                watch.left()
        return watch.replied(reply)

    async def get(self, get: Get) -> Reply:
        """A GET. A resumption is observed until its stream goes on, or is refused: what comes on it is the work of the
        requests that it points at."""
        if not self._observer.traces or EVENT_HEADER not in get.headers:
            return await self._door.get(get)
        found, version = carried(EMPTY, get.headers), get.headers.get(VERSION_HEADER.lower(), "")
        operation = Operation(
            self._observer,
            "resumption",
            "",
            found,
            endpoint=get.endpoint,
            era="legacy",
            version=version,
            transport="http",
        )
        try:
            reply = await self._door.get(get)
            if isinstance(reply, Answer):
                operations.answered(operation, reply.status, reply.body)
            else:
                operation.session = handle(session_key(get.headers[SESSION_HEADER]))
                operation.links = tuple(link for link in map(parse, reply.marks) if link is not None)
                operation.ended("answered")
            return reply
        finally:
            operation.ended("disconnected", "disconnected")

    async def delete(self, delete: Delete) -> Answer:
        """Passes on a DELETE."""
        return await self._door.delete(delete)

    def client_gone(self, affinity: str) -> None:
        """As in the port."""
        self._door.client_gone(affinity)


def _unrecordable(body: bytes) -> Answer:
    """What refuses a POST; by the first of its requests, if it has any."""
    error = errors.audit_full()
    with suppress(Malformed):
        frame = codec.decode_frame(body, len(body))
        messages = frame.messages if isinstance(frame, codec.Batch) else (frame,)
        for request in messages:
            if isinstance(request, Request):
                modern = frame is request and names_version(request.params) is not None
                return refused(error, request) if modern else Answer.refusing(error, request.id)
    return Answer.refusing(error)


class PostWatch:
    """Implements the port `PostObserver`: observes the requests of one POST."""

    __slots__ = ("_audit", "_elsewhere", "_observer", "_post", "_shown", "operations")

    def __init__(self, observer: Observer, shown: ShownTools, post: Post, audit: Audit = NO_AUDIT) -> None:
        self._audit = audit
        self.operations: dict[RequestId, Operation] = {}
        self._observer = observer
        self._shown = shown
        self._post = post
        self._elsewhere = False

    def began(self, request: Request, *, session: str = "", era: str = "", version: str = "") -> Request:
        """As in the port."""
        params, method, post = request.params, request.method, self._post
        found = carried(params, post.headers)
        operation = self._operation(method, found, request.id, session, era, version)
        if self._observer.names and method == "tools/call":
            operation.tool = self._shown.exposed(_read(params).subject(method))
        if self._audit.on and method in trail.AUDITED:
            # Put together when the line is, of a copy which keeps nothing of the message; unless it would keep much.
            kept = bytes(params) if len(params) <= KEPT else _asked(self._audit, method, params)
            who = post.principal.name, post.rights, post.peer
            operation.audited = partial(_audited, self._audit, *who, method, kept)
        self.operations[request.id] = operation
        if operation.context is None:
            return request
        return Request(request.id, request.method, carrying(request.params, operation.context, found.baggage))

    def _operation(
        self,
        method: str,
        found: Carried = NOTHING_CARRIED,
        id: RequestId | None = None,
        session: str = "",
        era: str = "",
        version: str = "",
    ) -> Operation:
        post = self._post
        return Operation(
            self._observer,
            "server",
            method,
            found,
            request_id=id,
            endpoint=post.endpoint,
            session=session,
            era=era,
            version=version or post.headers.get(VERSION_HEADER.lower(), ""),
            transport=post.transport,
            peer=post.peer,
        )

    def belongs(self, session: str) -> None:
        """As in the port."""
        for operation in self.operations.values():
            operation.session = session

    def elsewhere(self) -> None:
        """As in the port."""
        self._elsewhere = True

    def left(self) -> None:
        """Nobody waits for a reply any more. What an actor has it ends itself."""
        for operation in self.operations.values():
            operation.without_client = True
            if not operation.taken:
                operation.ended("disconnected", "disconnected")

    def replied(self, reply: Reply) -> Reply:
        """The reply, as it goes on to the client."""
        if isinstance(reply, Answer):
            if not self.operations and reply.status >= 400:
                self._answered(self._operation(""), reply)
            for operation in self.operations.values():
                if operation.outcome is None:
                    self._answered(operation, reply)
            return reply
        untaken = [one for one in self.operations.values() if one.outcome is None and not one.taken]
        return Streaming(_Watched(reply.source, untaken, self._elsewhere), reply.headers) if untaken else reply

    def _answered(self, operation: Operation, answer: Answer) -> None:
        if self._elsewhere and not operation.received:
            operation.ended("relayed", status=answer.status)
        else:
            operations.answered(operation, answer.status, answer.body)


class _Watched:
    """A stream that no actor of this process brings."""

    def __init__(self, source: EventSource, open: Sequence[Operation], elsewhere: bool) -> None:
        self._source = source
        self._open = open
        self._elsewhere = elsewhere

    async def receive(self) -> bytes | None:
        """As in the port."""
        chunk = await self._source.receive()
        if chunk is None:
            self._ended("answered")
        return chunk

    def close(self) -> None:
        """As in the port."""
        self._source.close()
        self._ended("disconnected")

    def _ended(self, outcome: operations.Outcome) -> None:
        for operation in self._open:
            if operation.outcome is None:
                operation.ended("relayed" if self._elsewhere else outcome)
