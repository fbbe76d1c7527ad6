"""A client of either era on one channel for everything, as over a WebSocket, HTTP+SSE or stdio.

Nothing is resumed: when its channel ends it opens another, and whatever had no answer has none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio

from tests.faults.client import Client, Fate, Message
from tests.faults.server import PATIENCE
from tests.support.duplex_client import META, Wire

CAPABILITIES: Message = {"elicitation": {}, "sampling": {}}
ANSWERS: Message = {
    "elicitation/create": {"action": "accept", "content": {"yes": True}},
    "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "well"}},
}
WAIT = 10 * PATIENCE
"""Seconds on a clock that jumps: an answer that takes longer never comes."""


class ChannelClient:
    """Has what scenarios use of `Client`, which makes its messages. `open` serves a channel, `heard` is told of it."""

    on_channel = True

    def __init__(self, maker: Client, modern: bool, open: Callable[[Wire], None], heard: Callable[[str], None]) -> None:
        self.who, self.target, self.prefix = maker.who, maker.target, maker.prefix
        self.tool, self.message = maker.tool, maker.message
        self.fates: list[tuple[str, Fate]] = []
        self.exchanges: list[Any] = []
        self.heard: list[Message] = []
        self.trouble: Any = None
        self.modern = modern
        self.wire: Wire | None = None
        self._revision = maker.revision
        self._open = open
        self._heard = heard
        self._waiting: dict[Any, tuple[trio.Event, list[Message | None]]] = {}

    # Its channel

    @property
    def session(self) -> str | None:
        """Whether there is something to end."""
        return None if self.wire is None else "a channel"

    async def initialize(self) -> bool:
        """A new channel."""
        await self.delete()
        self.wire = wire = Wire()
        wire.take = self._take  # type: ignore[method-assign]
        self._open(wire)
        if self.modern:
            return True
        told = {"protocolVersion": self._revision, "capabilities": CAPABILITIES, "clientInfo": META_INFO}
        answer = await self._outcome(self.message("initialize", told))
        if answer is None or "result" not in answer:
            return False
        wire.tell("notifications/initialized")
        answer = await self._outcome(self.message("ping"))  # what was said before is taken by then
        return answer is not None and "result" in answer

    async def delete(self) -> int:
        """Closes the channel."""
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.hang_up()
            await wire.ended.wait()
        return 200

    def lost(self) -> None:
        """The channel has ended: nothing more comes."""
        self.wire = None
        for came, answer in self._waiting.values():
            answer.append(None)
            came.set()

    def _take(self, message: Message) -> None:
        self._heard(json.dumps(message))
        if "method" not in message:
            if (waiting := self._waiting.get(message.get("id"))) is not None:
                waiting[1].append(message)
                waiting[0].set()
        elif "id" in message and self.wire is not None:
            self.wire.say({"jsonrpc": "2.0", "id": message["id"], "result": ANSWERS[message["method"]]})
        else:
            self.heard.append(message)

    # What it says

    async def notify(self, method: str, params: Message | None = None) -> int:
        """A notification. Whoever has cancelled waits no longer: on a channel that gets no answer."""
        if self.wire is not None:
            self.wire.tell(method, params)
        id = (params or {}).get("requestId")
        if method == "notifications/cancelled" and id in self._waiting:
            came, answer = self._waiting[id]
            answer.append({"cancelled": True})
            came.set()
        return 202

    async def call(self, name: str, *, token: bool = False) -> Fate:
        """Calls a tool, to the end."""
        return await self.follow(self.tool(name, token=token))

    async def request(self, method: str, params: Message | None = None) -> Fate:
        """Any other request."""
        return await self.follow(self.message(method, params))

    async def follow(self, message: Message) -> Fate:
        """Sends one request, to its end: a modern one again and again, with answers to what it asks."""
        began = trio.current_time()
        key = str(message.get("params", {}).get("arguments", {}).get("key", message["method"]))
        if self.wire is None and not await self.initialize():
            fate = Fate("broken")
            self.fates.append((key, fate))
            return fate
        answer = await self._outcome(message)
        while answer is not None and (result := answer.get("result", {})).get("resultType") == "input_required":
            asked = result["inputRequests"].items()
            again = self.message(message["method"], {k: v for k, v in message["params"].items() if k != "_meta"})
            again["params"]["inputResponses"] = {name: ANSWERS[each["method"]] for name, each in asked}
            again["params"]["requestState"] = result["requestState"]
            answer = await self._outcome(again)
        if answer is not None and "cancelled" in answer:
            return Fate("gone")
        fate = Fate("broken") if answer is None else Fate("answered", response=answer)
        fate.seconds = trio.current_time() - began
        self.fates.append((key, fate))
        return fate

    async def _outcome(self, message: Message) -> Message | None:
        """The response; None if the channel ended before."""
        if self.wire is None:
            return None
        if self.modern:
            params = message.setdefault("params", {})
            meta = {**META, "io.modelcontextprotocol/clientCapabilities": CAPABILITIES}
            message["params"] = {**params, "_meta": {**meta, **params.get("_meta", {})}}
        came, answer = self._waiting[message["id"]] = trio.Event(), []
        try:
            self.wire.say(message)
        except trio.ClosedResourceError:  # it is being closed
            del self._waiting[message["id"]]
            return None
        with trio.move_on_after(WAIT) as waited:
            await came.wait()
        del self._waiting[message["id"]]
        if waited.cancelled_caught:
            self._heard(f"nothing came for {message}")
            raise AssertionError(f"no outcome: {message}")
        if len(answer) > 1:
            raise AssertionError(f"two answers: {answer}")
        return answer[0]


META_INFO: Message = META["io.modelcontextprotocol/clientInfo"]  # type: ignore[assignment]
