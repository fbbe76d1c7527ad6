"""The client behind `stagedoor ls` and `stagedoor call`: a session with the gateway's own actors, in this process.

Over a configuration it is the aggregate that `/mcp` would serve; over a URL, the one server there, as it is. Either way
the connection to the server is the one that the gateway makes.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from actors.ports import ANONYMOUS, Answer, Post, Reply, Streaming
from actors.protocol import sse
from actors.protocol.table import BackendSpec, Endpoint, HttpTarget, Limits, Table
from actors.protocol.versions import LATEST_HANDSHAKE
from actors.runtime import open_system
from actors.tree import GatewayActors
from gateway import lifecycle
from gateway.cli.client import Client, ClientFailedError, Kind, Target, UrlTarget
from gateway.observability.logging import get_log
from gateway.observability.metrics import Metrics

LIST_METHODS: dict[str, str] = {"tools": "tools/list", "resources": "resources/list", "prompts": "prompts/list"}


class DoorClient:
    """One MCP session, spoken with a door."""

    def __init__(self, actors: GatewayActors, limit: int) -> None:
        self._actors = actors
        self._limit = limit
        self._session: str | None = None
        self._next_id = 1
        self._server: dict[str, Any] = {}

    async def begin(self) -> None:
        """The handshake."""
        params = {
            "protocolVersion": LATEST_HANDSHAKE,
            "capabilities": {},
            "clientInfo": {"name": "stagedoor-cli", "version": "1"},
        }
        self._server = await self._request("initialize", params)
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def servers(self) -> list[dict[str, Any]]:
        """What is served, as far as known."""
        found = []
        table = self._actors.services.table.value
        for name, spec in table.backends.items():
            status = self._actors.backends.status.get(name)
            entry: dict[str, Any] = {"name": name, "transport": _transport(spec)}
            hello = next((h for k, h in self._actors.tree.hellos.items() if k.backend == name), None)
            if hello is not None:
                entry["version"] = msgspec.json.decode(hello.server_info).get("version", "")
            if status is not None:
                entry["status"] = "down" if status.last_error else "up"
                if status.last_error:
                    entry["error"] = status.last_error
            found.append(entry)
        return found

    async def list(self, kind: Kind) -> list[dict[str, Any]]:
        """All pages."""
        items: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            result = await self._request(LIST_METHODS[kind], params)
            items += result.get(kind, [])
            if result.get("nextCursor") is None:
                return items
            params = {"cursor": result["nextCursor"]}

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool."""
        return await self._request("tools/call", {"name": name, "arguments": arguments})

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        id = self._next_id
        self._next_id += 1
        reply = await self._post({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        answer = await self._answer(reply, id)
        if "error" in answer:
            raise ClientFailedError(self._told(answer["error"]))
        result: dict[str, Any] = answer.get("result", {})
        return result

    def _told(self, error: dict[str, Any]) -> str:
        """An error for people, who may know the address, with what is known of the server's end."""
        message = str(error.get("message", "the server answered with an error")).removeprefix("Internal error: ")
        data = error.get("data")
        data = data if isinstance(data, dict) else {}
        status = self._actors.backends.status.get(str(data.get("backend")))
        if status is not None and status.failure is not None and status.failure.message in message:
            message = message.replace(status.failure.message, status.last_error)
        stderr = data.get("stderr")
        lines = [str(line) for line in stderr] if isinstance(stderr, list) else []
        return "\n".join([message, *(f"  {line}" for line in lines)])

    async def _post(self, message: dict[str, Any]) -> Reply:
        headers = {"mcp-session-id": self._session} if self._session is not None else {}
        reply = await self._actors.door.post(Post("", ANONYMOUS, headers, json.dumps(message).encode()))
        self._session = dict(reply.headers).get("mcp-session-id", self._session)
        return reply

    async def _answer(self, reply: Reply, id: int) -> dict[str, Any]:
        if isinstance(reply, Answer):
            answer: dict[str, Any] = json.loads(reply.body) if reply.body else {}
            return answer
        return await self._from_stream(reply, id)

    async def _from_stream(self, reply: Streaming, id: int) -> dict[str, Any]:
        decoder = sse.SseDecoder(2 * self._limit)
        try:
            while (chunk := await reply.source.receive()) is not None:
                for event in decoder.feed(chunk):
                    message = json.loads(event.data) if event.data else {}
                    if message.get("id") == id and "method" not in message:
                        return dict(message)
        finally:
            reply.source.close()
        raise ClientFailedError("the stream ended without an answer")


def _transport(spec: BackendSpec) -> str:
    return {"StdioTarget": "stdio", "HttpTarget": "http"}.get(type(spec.target).__name__, "inproc")


def table_of(target: Target) -> tuple[Table, Limits]:
    """What the target names, as a table."""
    if not isinstance(target, UrlTarget):
        return target.table, target.limits
    headers = (("Authorization", f"Bearer {target.token}"),) if target.token else ()
    name = target.url.partition("?")[0]
    remote = BackendSpec(name, HttpTarget(target.url, headers))
    return Table({name: remote}, {"": Endpoint("", "transparent", (name,))}), Limits()


@asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[Client]:
    """A client that is ready. Raises ClientFailedError if nobody answers there."""
    table, limits = table_of(target)
    log, metrics = get_log("stagedoor.cli"), Metrics()
    async with (
        lifecycle.open_connector(log, limits) as connector,
        lifecycle.open_store(
            "memory://", limits, log, on_lost=lambda reason: None, on_batch=lambda operations, seconds: None
        ) as store,
        open_system(lifecycle.crash_logger(log, metrics)) as system,
    ):
        key = lifecycle.ephemeral_sealer()
        actors = GatewayActors(system, lifecycle.services_for(table, limits, store, connector, key, metrics, log))
        client = DoorClient(actors, limits.message_bytes)
        await client.begin()
        yield client
        with trio.move_on_after(limits.drain_deadline):
            await system.drain(limits.drain_deadline)
