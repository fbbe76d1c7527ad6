"""A client that has one channel for everything (as over a WebSocket, HTTP+SSE or stdio), in the place of HTTP: what it
would post goes over the channel, and what comes is sorted to the requests that it names.

What a test sees of a request is the exchange that it would see over HTTP, as a stream. An answer has no status here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.duplex import Duplex
from actors.ports import ANONYMOUS, Principal
from tests.support import modern_rules as rules
from tests.support.duplex_client import Wire
from tests.support.modern_rules import typed
from tests.support.wire_http import Exchange, Message

HEADERS = {"content-type": "text/event-stream", "x-accel-buffering": "no"}


class Lane(Exchange):
    """One request among those on the channel, and what came for it. Cutting it is saying that it is cancelled."""

    def __init__(self, connection: Connection, sent: Message) -> None:
        super().__init__()
        self.sent = sent
        self._connection = connection

    @property
    def meta(self) -> Message:
        """Of its request."""
        found: Message = self.sent.get("params", {}).get("_meta", {})
        return found

    def open(self) -> None:
        """It is a stream."""
        self.status, self.headers = 200, HEADERS
        self._head.set()

    def bring(self, message: Message) -> None:
        """The next message."""
        self.open()
        self._chunks.send_nowait(b"data: " + json.dumps(message).encode() + b"\n\n")

    def cut(self) -> None:
        if not self.ended:
            self._connection.over(self)
            self._connection.wire.tell("notifications/cancelled", {"requestId": self.sent["id"]})


class Connection:
    """A channel, and what is under way there."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.lanes: list[Lane] = []
        wire.take = self._sort  # type: ignore[method-assign]

    def over(self, lane: Lane) -> None:
        """Nothing more comes for it."""
        self.lanes.remove(lane)
        lane.close()

    def _sort(self, message: Message) -> None:
        lane = self._lane(message)
        if lane is None:
            assert message.get("method") == "notifications/cancelled", f"it belongs to no request: {message}"
            return
        lane.bring(message)
        if "method" not in message:
            self.over(lane)

    def _lane(self, message: Message) -> Lane | None:
        """The request that a message names, or the only one that it can belong to."""
        params = message.get("params", {})
        meta = params.get("_meta", {})
        if "method" not in message:
            found = [each for each in self.lanes if typed(each.sent["id"]) == typed(message["id"])]
        elif rules.SUBSCRIPTION in meta:
            found = [each for each in self.lanes if typed(each.sent["id"]) == typed(meta[rules.SUBSCRIPTION])]
        elif message["method"] == "notifications/progress":
            token = typed(params["progressToken"])
            found = [lane for lane in self.lanes if typed(lane.meta.get("progressToken")) == token]
        elif message["method"] == "notifications/message":
            found = [lane for lane in self.lanes if rules.LEVEL in lane.meta]
        else:
            return None
        [lane] = found
        return lane


class OneChannel:
    """Has what a client uses of `AsgiHttp`; the channel is opened by the first request."""

    def __init__(self, stage: Any, tokens: Mapping[str, str]) -> None:
        self._stage = stage
        self._principals = {f"Bearer {token}": Principal(name) for name, token in tokens.items()}
        self._connection: Connection | None = None
        self.connect: Callable[[], Connection] = lambda: Connection(Wire())

    def begin(self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> Lane:
        """Sends a request and returns at once."""
        assert method == "POST", f"there is no {method} on a channel"
        connection = self.opened(path, headers)
        message = json.loads(body)
        lane = Lane(connection, message)
        connection.wire.say(message)
        if "id" in message:
            connection.lanes.append(lane)
        else:  # which nobody answers
            lane.status = 202
            lane.close()
        return lane

    def opened(self, path: str, headers: Sequence[tuple[str, str]]) -> Connection:
        """The channel, which is opened if there is none."""
        if self._connection is None:
            self._connection = self.connect()
            principal = self._principals.get(dict(headers).get("authorization", ""), ANONYMOUS)
            door = Duplex(self._stage.actors.door, self._stage.limits)
            endpoint = path.removeprefix("/mcp").removeprefix("/")
            self._stage.nursery.start_soon(door, self._connection.wire, endpoint, principal)
        return self._connection

    def cut_all(self) -> None:
        """The connection breaks; the next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            for lane in list(connection.lanes):
                connection.over(lane)
            connection.wire.hang_up()


# With a session -------------------------------------------------------------------------------------------------------


class SessionWire(Wire):
    """Knows when a message was taken: when the next one is asked for. (Somebody waits for that, as at stdio.)"""

    calls = False

    def __init__(self) -> None:
        super().__init__()
        self.said: deque[Lane | None] = deque()

    async def receive(self) -> bytes | None:
        if self.said and (notified := self.said.popleft()) is not None:
            notified.status = 202
            notified.close()
        return await super().receive()


class SessionConnection(Connection):
    """What is under way in a session. Whatever names no request belongs to the only call there is, or to none: then it
    comes on what would be a GET stream."""

    def __init__(self, wire: SessionWire) -> None:
        super().__init__(wire)
        self.listening: Lane | None = None
        self.unheard: list[Message] = []

    def _sort(self, message: Message) -> None:
        lane = self._lane(message) or self.listening
        if lane is None:
            self.unheard.append(message)
            return
        lane.bring(message)
        if "method" not in message:
            self.over(lane)

    def _lane(self, message: Message) -> Lane | None:
        params = message.get("params", {})
        if "method" not in message:
            [lane] = [lane for lane in self.lanes if typed(lane.sent["id"]) == typed(message["id"])]
            return lane
        if message["method"] == "notifications/progress":
            token = typed(params["progressToken"])
            found = [lane for lane in self.lanes if typed(lane.meta.get("progressToken")) == token]
        elif "id" in message or message["method"] == "notifications/message":
            found = [lane for lane in self.lanes if lane.sent["method"] in MAY_BE_ASKED]
        else:
            return None
        return found[0] if len(found) == 1 else None


MAY_BE_ASKED = {"tools/call", "prompts/get", "resources/read"}


class SessionLane(Lane):
    """One request of a session, a notification, or what would be a GET stream."""

    def bring(self, message: Message) -> None:
        super().bring(message)
        if self.sent.get("method") == "initialize" and "result" in message:
            self.headers = {**HEADERS, "mcp-session-id": "the-channel-itself"}

    def cut(self) -> None:
        raise AssertionError("a channel breaks as a whole")


class OneSession:
    """Has what a client with a session uses of `AsgiHttp`; `initialize` opens the channel, DELETE closes it."""

    def __init__(self, stage: Any, tokens: Mapping[str, str]) -> None:
        self._channel = OneChannel(stage, tokens)
        self._channel.connect = lambda: SessionConnection(SessionWire())

    def begin(self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> Lane:
        """Sends a message and returns at once."""
        connection = self._channel.opened(path, headers)
        assert isinstance(connection, SessionConnection)
        wire = connection.wire
        assert isinstance(wire, SessionWire)
        lane = SessionLane(connection, json.loads(body) if body else {})
        if method == "DELETE":
            lane.status = 200
            lane.close()
            self.cut_all()
        elif method == "GET":
            assert connection.listening is None, "there is one stream"
            connection.listening = lane
            lane.open()
            for message in connection.unheard:
                lane.bring(message)
        else:
            asks = "id" in lane.sent and "method" in lane.sent
            wire.said.append(None if asks else lane)
            if asks:
                connection.lanes.append(lane)
            wire.say(lane.sent)
        return lane

    def cut_all(self) -> None:
        """The connection breaks."""
        self._channel.cut_all()
