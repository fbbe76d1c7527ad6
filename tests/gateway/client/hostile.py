"""A server of which a test says what it answers, and when it says what else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import trio

from actors.ports import Headers, SessionLost
from gateway.client import ConnectionLostError

Message: TypeAlias = dict[str, Any]
Say: TypeAlias = Callable[[Message], object]

LEGACY, MODERN = "2025-11-25", "2026-07-28"
ABOUT = {"capabilities": {}, "serverInfo": {"name": "hostile", "version": "1"}}


class Hostile:
    """A transport to a server of which a test says what it answers: a result, or None to say nothing by itself."""

    session_id = None
    last_event_id = None

    def __init__(
        self, answer: Callable[[Message, Say], Message | None] = lambda asked, say: {}, *, room: int = 100
    ) -> None:
        self._answer = answer
        self._sender, self._inbox = trio.open_memory_channel[bytes | SessionLost](room)
        self.heard: list[Message] = []

    def say(self, message: Message) -> None:
        self._sender.send_nowait(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def lose(self, id: int) -> None:
        """Its answer is that it has forgotten the session."""
        self._sender.send_nowait(SessionLost(id))

    def tell(self, method: str, params: Any) -> None:
        self.say({"method": method, "params": params})

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        await trio.lowlevel.checkpoint()
        asked = json.loads(message)
        self.heard.append(asked)
        if "id" not in asked or "method" not in asked:
            return
        if asked["method"] == "initialize":
            result: Message | None = {"protocolVersion": asked["params"]["protocolVersion"], **ABOUT}
        elif asked["method"] == "server/discover":
            result = {"supportedVersions": [MODERN], **ABOUT}
        else:
            result = self._answer(asked, self.say)
        if result is not None:
            self.say({"id": asked["id"], "result": result})

    async def receive(self) -> bytes | SessionLost:
        try:
            return await self._inbox.receive()
        except trio.EndOfChannel:
            raise ConnectionLostError("it is gone") from None

    async def close(self) -> None:
        self._sender.close()
        await trio.lowlevel.checkpoint()

    async def resume_from(self, event_id: str) -> None:
        raise NotImplementedError

    @property
    def unread(self) -> int:
        """What it said and nobody has received."""
        return self._inbox.statistics().current_buffer_used

    def methods(self) -> list[str]:
        return [message.get("method", "") for message in self.heard]
