"""Connections to a server that keeps what it said in the course of a request, under event ids: whoever goes on with the
session over another connection gets the rest of it there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from actors.ports import TransportEvent
from actors.protocol.codec import dumps, loads
from actors.protocol.messages import RequestId
from actors.protocol.table import BackendSpec
from tests.support.mcp_backend import ServerRequested, Upstream
from tests.support.scripted import ScriptedTransport, Sent

if TYPE_CHECKING:
    from tests.faults.server import Server

Key = tuple[str | None, RequestId]
"""A request: the session, and its id."""


@dataclass
class Memory:
    """What a server keeps, and what it has broken off. `rest` is offered each request for the rest of an answer first;
    True takes it away."""

    said: dict[Key, list[Any]] = field(default_factory=lambda: defaultdict(list))
    readers: dict[Key, LastingTransport] = field(default_factory=dict)
    broken: set[Key] = field(default_factory=set)
    questions: dict[int | str, ServerRequested] = field(default_factory=dict)
    rest: Callable[[LastingTransport, RequestId], bool] = lambda transport, id: False


class LastingTransport(ScriptedTransport):
    """One of them."""

    def __init__(self, memory: Memory, *args: Any) -> None:
        super().__init__(*args)
        self._memory = memory

    def deliver(
        self, frame: bytes | Mapping[str, Any], related: RequestId | None = None, cursor: str | None = None
    ) -> None:
        if related is None:
            super().deliver(frame, None, cursor)
            return
        key = (self.session, related)
        said, reader = self._memory.said[key], self._memory.readers.get(key, self)
        said.append(frame)
        reader.bring(frame, related, len(said))

    def bring(self, frame: bytes | Mapping[str, Any], related: RequestId, number: int) -> None:
        """Over this connection."""
        super().deliver(frame, related, f"{related}/{number}")

    def pick_up(self, id: RequestId, cursor: str) -> None:
        super().pick_up(id, cursor)
        if self._memory.rest(self, id):
            return
        after, key = int(cursor.rpartition("/")[2]), (self.session, id)
        self._memory.readers[key] = self
        for number, frame in enumerate(self._memory.said[key][after:], after + 1):
            self.bring(frame, id, number)
        if key in self._memory.broken:
            super().fail(id)

    def fail(self, id: RequestId, executed: Literal["no", "unknown"] = "unknown", status: int | None = None) -> None:
        key = (self.session, id)
        self._memory.broken.add(key)
        ScriptedTransport.fail(self._memory.readers.get(key, self), id, executed, status)


class LastingLink(Upstream):
    """What a server sees of one."""

    def __init__(
        self, backend: Server, memory: Memory, spec: BackendSpec, emit: Callable[[TransportEvent], None]
    ) -> None:
        super().__init__(backend, spec, emit)
        self.transport = LastingTransport(memory, spec, emit, self._script, backend.kind)
        self._questions = memory.questions
        self._next = 1000 * len(backend.upstreams) + 1  # an id of its own for each question, on all connections

    def _script(self, transport: ScriptedTransport, sent: Sent) -> None:
        super()._script(transport, sent)
        message = dict(loads(dumps(sent.message)))
        if message.get("method") == "notifications/cancelled":
            for request in self.backend.requests:
                if (request.upstream.transport.session, request.id) == (
                    transport.session,
                    message["params"]["requestId"],
                ):
                    request.cancelled.set()
