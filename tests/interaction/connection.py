"""One session that the gateway has with a scripted backend, and the requests in it.

Whatever the gateway sends is checked at once against the schema of the negotiated revision and the rules of a session;
faults are kept for the end of the test, since they can't be raised where the gateway calls.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from tests.support.schemas import MODERN, NEWEST, assert_valid
from tests.support.wire_client import WAIT, Message, RpcError

if TYPE_CHECKING:
    from tests.interaction.backend import Backend

Id = int | str


class InputNeeded(Exception):  # noqa: N818 - a handler's way to end, not a fault
    """In the era without sessions: the handler can't go on without these answers, or only later. `state` None: none is
    given; left out, one is made up that remembers the earlier answers."""

    def __init__(self, questions: Mapping[str, Mapping[str, Any]] | None = None, state: str | None = "") -> None:
        super().__init__(f"input is needed: {questions}")
        self.questions = questions
        self.state = state


@dataclass(eq=False)
class Request:
    """A request that the backend got."""

    connection: Connection
    message: Message
    cancelled: trio.Event = field(default_factory=trio.Event)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Over HTTP, in the era without sessions: of its POST."""
    answers: Message = field(default_factory=dict)
    """In that era: to all that was asked in this and in earlier rounds."""
    asked: int = 0

    @property
    def id(self) -> Id:
        id: Id = self.message["id"]
        return id

    @property
    def method(self) -> str:
        method: str = self.message["method"]
        return method

    @property
    def params(self) -> Message:
        params: Message = self.message.get("params", {})
        return params

    @property
    def arguments(self) -> Message:
        arguments: Message = self.params.get("arguments", {})
        return arguments

    @property
    def token(self) -> Id | None:
        token: Id | None = self.params.get("_meta", {}).get("progressToken")
        return token

    def progress(self, progress: float, **more: Any) -> None:
        self.notify("notifications/progress", {"progressToken": self.token, "progress": progress, **more})

    def log(self, level: str, data: Any, **more: Any) -> None:
        self.notify("notifications/message", {"level": level, "data": data, **more})

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """On the stream of this request, where the transport has one."""
        self.connection.notify(method, params, related=self.id)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> Message:
        """A question to the client in the course of this request, in the form of the era."""
        return await self.connection.ask_for(self, method, params)

    def answer(self, result: Mapping[str, Any]) -> None:
        self.connection.say({"id": self.id, "result": dict(result)}, related=self.id)


class Connection:
    """One session that the gateway has with the backend. `write` hands a frame to the transport, with the id of the
    request on whose stream it belongs."""

    def __init__(self, backend: Backend, write: Callable[[bytes, Id | None], None]) -> None:
        self.backend = backend
        self.received: list[Message] = []
        self.revision = NEWEST
        self.client: Message = {}
        self.initialized = False
        self.ended = trio.Event()
        self.running: dict[Id, Request] = {}
        self.hang_up: Callable[[], None] = lambda: None
        """Ends the connection from the backend's side."""
        self._write = write
        self._ids: set[tuple[type, Id]] = set()
        self._asked: dict[str, tuple[str, trio.Event, list[Message]]] = {}
        self._next_ask = 1

    def __repr__(self) -> str:
        return f"<Connection to {self.backend.name}, {len(self.received)} received>"

    # What comes

    def feed(self, frame: bytes) -> None:
        """One frame of the gateway. Never raises."""
        try:
            message: Message = json.loads(frame)
            self.received.append(message)
            self._take(message)
        except Exception as fault:  # kept for the end of the test
            self.backend.faults.append(fault)
        self.backend.changed.unpark_all()

    def _take(self, message: Message) -> None:
        if "method" not in message:
            self._answered(message)
            return
        method = message["method"]
        if method == "server/discover" and not self.client:
            # Somebody finds out of which era this server is.
            assert_valid(message, MODERN, "client")
            self.backend.serve(Request(self, message))
            return
        if method not in self.backend.extensions:
            assert_valid(message, self.revision, "client")
        if "id" in message:
            self._check_id(message)
            self.backend.serve(Request(self, message))
        elif method == "notifications/initialized":
            assert self.client, "initialized before initialize"
            self.initialized = True
        elif method == "notifications/cancelled":
            self._cancelled(message["params"])

    def _check_id(self, message: Message) -> None:
        assert (type(message["id"]), message["id"]) not in self._ids, f"an id was used before: {message}"
        self._ids.add((type(message["id"]), message["id"]))
        if message["method"] == "initialize":
            assert not self.client, "initialize comes once"
            self.client = message["params"]
            self.revision = self.backend.revision
        else:
            assert self.initialized, f"a request before initialized: {message}"

    def _cancelled(self, params: Message) -> None:
        id = params["requestId"]
        assert (type(id), id) in self._ids, f"cancelled, but never asked: {params}"
        request = self.running.pop(id, None)
        if request is not None:  # else the answer is on its way
            assert request.method != "initialize", "initialize can't be cancelled"
            request.cancelled.set()

    def _answered(self, message: Message) -> None:
        method, answered, answers = self._asked[message["id"]]
        assert not answers, f"a second answer: {message}"
        checked = None if self.backend.trusting else method
        assert_valid(message, self.revision, "client", method=checked)
        answers.append(message)
        answered.set()

    # What is said

    def say(self, message: Mapping[str, Any], related: Id | None = None) -> None:
        """Sends any message."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode(), related)

    def write(self, frame: bytes, related: Id | None = None) -> None:
        """Sends any bytes."""
        if not self.ended.is_set():
            self._write(frame, related)

    def notify(self, method: str, params: Mapping[str, Any] | None = None, related: Id | None = None) -> None:
        message: Message = {"method": method} if params is None else {"method": method, "params": dict(params)}
        self.say(message, related)

    def begin_ask(
        self, method: str, params: Mapping[str, Any] | None = None, related: Id | None = None
    ) -> tuple[str, Callable[..., Awaitable[Message]]]:
        """Asks the client; the id of the question, and how to wait for the answer, which may be an RpcError."""
        id = f"q{self._next_ask}"
        self._next_ask += 1
        self._asked[id] = (method, trio.Event(), [])
        self.say({"id": id, "method": method, **({} if params is None else {"params": dict(params)})}, related)

        async def wait(within: float = WAIT) -> Message:
            _, answered, answers = self._asked[id]
            with trio.fail_after(within):
                await answered.wait()
            if "error" in answers[0]:
                raise RpcError(answers[0]["error"])
            result: Message = answers[0]["result"]
            return result

        return id, wait

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, related: Id | None = None) -> Message:
        _, wait = self.begin_ask(method, params, related)
        return await wait()

    async def ask_for(self, request: Request, method: str, params: Mapping[str, Any] | None) -> Message:
        """A question in the course of a request."""
        return await self.ask(method, params, related=request.id)

    def result(self, request: Request, result: Mapping[str, Any]) -> Message:
        """What a handler has found, as the result of this era."""
        return dict(result)

    def needs(self, request: Request, needed: InputNeeded) -> Message:
        """What a handler needs, as the result of this era."""
        raise AssertionError(f"there is no such result in this era: {needed}")

    # What was seen

    def of(self, method: str) -> list[Message]:
        """Messages of the gateway with this method."""
        return [m for m in self.received if m.get("method") == method]

    async def wait_for(self, method: str, count: int = 1) -> Message:
        """The so-manieth message with this method."""
        with trio.fail_after(WAIT):
            while len(self.of(method)) < count:
                await self.backend.changed.park()
        return self.of(method)[count - 1]

    async def wait_ended(self) -> None:
        with trio.fail_after(WAIT):
            await self.ended.wait()

    def end(self) -> None:
        """The transport says that it is over."""
        self.ended.set()
