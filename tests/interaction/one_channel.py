"""A client without sessions that has one channel for everything (as over a WebSocket, HTTP+SSE or stdio), in the place
of HTTP: what it would post goes over the channel, and what comes is sorted to the requests that it names.

What a test sees of a request is the exchange that it would see over HTTP, as a stream. An answer has no status here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

    def bring(self, message: Message) -> None:
        """The next message."""
        self.status, self.headers = 200, HEADERS
        self._head.set()
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

    def begin(self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> Lane:
        """Sends a request and returns at once."""
        assert method == "POST", f"there is no {method} on a channel"
        principal = self._principals.get(dict(headers).get("authorization", ""), ANONYMOUS)
        if self._connection is None:
            self._connection = self._open(path, principal)
        message = json.loads(body)
        lane = Lane(self._connection, message)
        self._connection.wire.say(message)
        if "id" in message:
            self._connection.lanes.append(lane)
        else:  # which nobody answers
            lane.status = 202
            lane.close()
        return lane

    def _open(self, path: str, principal: Principal) -> Connection:
        wire = Wire()
        door = Duplex(self._stage.actors.door, self._stage.limits)
        self._stage.nursery.start_soon(door, wire, path.removeprefix("/mcp").removeprefix("/"), principal)
        return Connection(wire)

    def cut_all(self) -> None:
        """The connection breaks; the next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            for lane in list(connection.lanes):
                connection.over(lane)
            connection.wire.hang_up()
