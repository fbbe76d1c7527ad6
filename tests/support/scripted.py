"""A backend made of a script, in memory: for tests of whatever owns a transport.

It keeps to the port as the real ones do: nothing happens before `run`, TransportClosed comes once and last, and after
it nothing. A script is called with each message sent and answers by the methods of the transport; a test without a
script reads `next_sent` and does the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import trio
from msgspec import Raw

from actors.ports import (
    NO_RIGHTS,
    FrameAccepted,
    FrameReceived,
    Headers,
    Listening,
    Positioned,
    RequestFailed,
    Resumable,
    Rights,
    SessionLost,
    Spoke,
    TransportClosed,
    TransportEvent,
    TransportKind,
)
from actors.protocol.codec import dumps, loads
from actors.protocol.messages import RequestId
from actors.protocol.table import BackendSpec
from actors.protocol.transport import RELATING

INITIALIZED: Mapping[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "logging": {}, "completions": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
}
"""The answer of `answering` to `initialize`."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that the owner sent."""

    frame: bytes
    id: RequestId | None
    tag: int | None
    headers: Headers = ()
    rights: Rights = NO_RIGHTS

    @property
    def message(self) -> dict[str, Any]:
        """The frame, decoded in full."""
        return dict(loads(Raw(self.frame)))

    @property
    def method(self) -> str | None:
        """None for a response."""
        return self.message.get("method")


class ScriptedTransport:
    """See `actors.ports.Transport`. What the owner did is in the public attributes."""

    def __init__(
        self,
        spec: BackendSpec,
        emit: Callable[[TransportEvent], None],
        script: "Script | None" = None,
        kind: TransportKind = "stdio",
    ) -> None:
        self.kind = kind
        self.warm = False
        self.spec = spec
        self.sent: list[Sent] = []
        self.versions: list[str] = []
        self.forgotten: list[RequestId] = []
        self.listens = 0
        self.holds_stream = False
        """Whether the GET stream waits for `attach`."""
        self.restarts = 0
        self.session: str | None = f"scripted-{id(self)}"
        """What the backend calls this session, over HTTP."""
        self.resumed: Resumable | None = None
        self.picked_up: list[tuple[RequestId, str]] = []
        self.let_go_of = False
        """It was closed, and the backend's session kept."""
        self.handed_over = False
        """It was closed, and its process might have served another transport."""
        self._spoke = False
        self._cursor: str | None = None
        self._emit = emit
        self._script = script
        self._early: list[Sent] = []
        self.ended: TransportClosed | None = None
        """How it has ended, or will."""
        self._running = False
        self._ending = trio.Event()
        self._lot = trio.lowlevel.ParkingLot()
        self._read = 0

    def __repr__(self) -> str:
        state = "ended" if self._ending.is_set() else "running" if self._running else "not started"
        return f"<ScriptedTransport {self.spec.name} {state}, {len(self.sent)} sent>"

    @property
    def closed(self) -> bool:
        """Whether it has ended, or has been told to."""
        return self._ending.is_set()

    async def wait_closed(self) -> None:
        """Until it has ended, or has been told to."""
        await self._ending.wait()

    # The owner's side

    async def run(self) -> None:
        """Waits for the end. See the port."""
        self._running = True
        early, self._early = self._early, []
        for sent in early:
            self.pass_on(sent)
        try:
            await self._ending.wait()
        finally:
            self._running = False
            self._ending.set()
            self._emit(self.ended or TransportClosed("aborted", "cancelled"))

    def send(
        self,
        frame: bytes,
        *,
        id: RequestId | None = None,
        tag: int | None = None,
        headers: Headers = (),
        rights: Rights = NO_RIGHTS,
    ) -> None:
        """Hands the message to the script; one to a transport that has ended is dropped."""
        sent = Sent(frame, id, tag, headers, rights)
        if self._ending.is_set():
            return
        if self._running:
            self.pass_on(sent)
        else:
            self._early.append(sent)

    stderr: tuple[str, ...] = ()

    @property
    def kept(self) -> Resumable | None:
        return (
            Resumable(self.session, self.versions[-1], self._cursor) if self.kind == "http" and self.versions else None
        )

    def resume(self, kept: Resumable) -> None:
        self.resumed, self.session, self._cursor = kept, kept.session, kept.cursor
        self.versions.append(kept.version)

    def pick_up(self, id: RequestId, cursor: str) -> None:
        self.picked_up.append((id, cursor))

    def negotiated(self, version: str) -> None:
        self.versions.append(version)

    def listen(self) -> None:
        self.listens += 1
        if self.kind == "http" and not self.holds_stream:
            self.attach()

    def forget(self, id: RequestId) -> None:
        self.forgotten.append(id)

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        self.end("closed", "closed")

    def let_go(self) -> None:
        self.let_go_of = self.kind == "http"
        self.close()

    def belongs_to(self, principal: str) -> None:
        """The server is not told."""

    def hand_over(self) -> None:
        self.handed_over = True
        self.close()

    # The backend's side

    async def next_sent(self) -> Sent:
        """The next message sent, in order, each once."""
        while self._read == len(self.sent):
            await self._lot.park()
        self._read += 1
        return self.sent[self._read - 1]

    def deliver(
        self, frame: bytes | Mapping[str, Any], related: RequestId | None = None, cursor: str | None = None
    ) -> None:
        """The backend says this: bytes as they are, or a mapping that gets its `jsonrpc` member; `cursor` is its event
        id."""
        if not isinstance(frame, bytes):
            frame = bytes(dumps({"jsonrpc": "2.0", **frame}))
        if related is None and cursor is not None:
            self._cursor = cursor
        if self.kind == "stdio" and not self._spoke:
            self._spoke = True
            self.say(Spoke())
        self.say(FrameReceived(frame, related, cursor))

    def prime(self, cursor: str, related: RequestId | None = None) -> None:
        """An event with an id and without a message."""
        if related is None:
            self._cursor = cursor
        self.say(Positioned(related, cursor))

    def answer(self, sent: Sent, result: Mapping[str, Any]) -> None:
        """The result of this request, on its own stream where the transport has such."""
        self.deliver({"id": sent.id, "result": result}, sent.id if self.kind in RELATING else None)

    def refuse(self, sent: Sent, code: int, message: str) -> None:
        """A JSON-RPC error for this request."""
        error = {"code": code, "message": message}
        self.deliver({"id": sent.id, "error": error}, sent.id if self.kind in RELATING else None)

    def attach(self) -> None:
        """The GET stream is open, or refused."""
        self.say(Listening())

    def accept(self, tag: int) -> None:
        """The message with this tag has arrived."""
        self.say(FrameAccepted(tag))

    def fail(self, id: RequestId, executed: Literal["no", "unknown"] = "unknown", status: int | None = None) -> None:
        """The request will get no response."""
        self.say(RequestFailed(id, "broken", "scripted failure", executed, status))

    def lose_session(self, id: RequestId | None = None) -> None:
        """The backend has forgotten the session."""
        self.say(SessionLost(id))

    def end(
        self, reason: str = "exited", message: str = "scripted end", detail: str = "", stderr: tuple[str, ...] = ()
    ) -> None:
        """The connection ends."""
        if self.ended is None:
            self.ended = TransportClosed(reason, message, detail, stderr)
        self._ending.set()

    def say(self, event: TransportEvent) -> None:
        """Any event, while the connection lasts."""
        if not self._ending.is_set():
            self._emit(event)

    def pass_on(self, sent: Sent) -> None:
        """The backend reads a message; a test that puts something else in its place has it read later."""
        self.sent.append(sent)
        self._lot.unpark()
        if sent.tag is not None and self._script is not None:
            self.accept(sent.tag)
        if self._script is not None:
            self._script(self, sent)


Script: TypeAlias = Callable[[ScriptedTransport, Sent], None]


def answering(results: Mapping[str, Mapping[str, Any] | None]) -> Script:
    """A script that answers each request by its method: None leaves it unanswered, a method not named gets -32601.

    `initialize` and `ping` are answered too if not named.
    """
    table: dict[str, Mapping[str, Any] | None] = {"initialize": INITIALIZED, "ping": {}, **results}

    def script(transport: ScriptedTransport, sent: Sent) -> None:
        method = sent.method
        if sent.id is None or method is None:
            return
        if method not in table:
            transport.refuse(sent, -32601, "Method not found")
        elif (result := table[method]) is not None:
            transport.answer(sent, result)

    return script


class ScriptedConnector:
    """Makes scripted transports and keeps them, newest last."""

    def __init__(self, script: Script | None = None, kind: TransportKind = "stdio") -> None:
        self.transports: list[ScriptedTransport] = []
        self._script = script
        self._kind = kind

    def connect(
        self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False
    ) -> ScriptedTransport:
        transport = ScriptedTransport(spec, emit, self._script, self._kind)
        self.transports.append(transport)
        return transport
