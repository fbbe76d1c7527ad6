"""A raw client of the era without sessions over the door: each request stands for itself, and its connection is its
life.

    client = ModernClient(door, nursery)
    result = await client.call("tools/call", {"name": "echo"})

    pending = client.begin("tools/call", {"name": "slow"}, progress="t")
    await pending.next("notifications/progress")
    pending.drop()                                   # that is how a client cancels
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import trio

from actors.ports import ANONYMOUS, NO_RIGHTS, Door, Post, Principal, Streaming
from tests.support.door_client import Message, Pending

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
TAG = PREFIX + "subscriptionId"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class ModernClient:
    """One client of one endpoint."""

    def __init__(
        self,
        door: Door,
        nursery: trio.Nursery,
        endpoint: str = "",
        principal: Principal = ANONYMOUS,
        *,
        capabilities: Mapping[str, Any] | None = None,
        affinity: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.principal = principal
        self.rights = NO_RIGHTS
        self.peer = ""
        self.capabilities = dict(capabilities or {})
        self.affinity = affinity
        self._door = door
        self._nursery = nursery
        self._next = 1

    async def call(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> Message:
        """A request and its result. Raises RpcError."""
        return await self.begin(method, params, **more).result()

    def begin(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str | None = None,
        progress: int | str | None = None,
        level: str | None = None,
        meta: Mapping[str, Any] | None = None,
        **headers: str,
    ) -> Pending:
        """Sends a request and goes on; `progress` is its progress token, `level` that of the logs it wants."""
        if id is None:
            id, self._next = self._next, self._next + 1
        said: dict[str, Any] = {
            PREFIX + "protocolVersion": VERSION,
            PREFIX + "clientCapabilities": self.capabilities,
            PREFIX + "clientInfo": {"name": "test", "version": "1"},
        }
        if level is not None:
            said[PREFIX + "logLevel"] = level
        if progress is not None:
            said["progressToken"] = progress
        sent = {**(params or {}), "_meta": {**said, **(meta or {})}}
        own = {"mcp-protocol-version": VERSION, "mcp-method": method}
        name = sent.get(NAMED.get(method, ""))
        if name is not None:
            own["mcp-name"] = header_value(name)
        if self.affinity is not None:
            own["stagedoor-affinity"] = self.affinity
        own |= {header.replace("_", "-"): value for header, value in headers.items()}
        return self.post({"jsonrpc": "2.0", "id": id, "method": method, "params": sent}, own)

    def listen(self, *uris: str, id: int | str | None = None, **flags: bool) -> Pending:
        """A subscription; `flags` are `tools`, `prompts`, `resources`."""
        wanted: dict[str, Any] = {f"{kind}ListChanged": on for kind, on in flags.items()}
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        return self.begin("subscriptions/listen", {"notifications": wanted}, id=id)

    def post(self, message: Message | bytes, headers: Mapping[str, str]) -> Pending:
        """Posts a message, or bytes, with these headers."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        pending = Pending(message.get("id") if isinstance(message, dict) else None)
        all_headers = {"accept": "application/json, text/event-stream", **headers}
        request = Post(self.endpoint, self.principal, all_headers, body, rights=self.rights, peer=self.peer)
        self._nursery.start_soon(self._run, pending, request)
        return pending

    async def _run(self, pending: Pending, request: Post) -> None:
        source = None
        try:
            with pending.scope:
                reply = await self._door.post(request)
                source = reply.source if isinstance(reply, Streaming) else None
                pending.begun(reply)
                while source is not None:
                    chunk = await source.receive()
                    if chunk is None:
                        break
                    pending.came(chunk)
        finally:
            if source is not None:
                source.close()
            pending.ended()


def header_value(text: str) -> str:
    """A value as a header carries it."""
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="
