"""The client behind `stagedoor ls` and `stagedoor call`: a session with the gateway's own actors, in this process.

Over a configuration it is the aggregate that `/mcp` would serve, by the connections that the gateway makes; over a URL,
the one server there, as it is.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import trio

from actors.endpoints.merged import MISSING
from actors.ports import ANONYMOUS, Answer, Post, Reply, Streaming
from actors.protocol import sse
from actors.protocol.methods import METHODS
from actors.protocol.table import Limits
from actors.protocol.versions import LATEST_HANDSHAKE
from actors.runtime import open_system
from actors.tree import GatewayActors
from gateway import lifecycle
from gateway.calling import LISTED, open_url, told
from gateway.cli.client import Client, ClientFailedError, Kind, Target, UrlTarget
from gateway.config import Settings
from gateway.observability.logging import get_log
from gateway.observability.metrics import Metrics
from gateway.servers import servers_of
from gateway.upstream_auth import open_authorizing

LIST_METHODS: dict[str, str] = {"tools": "tools/list", "resources": "resources/list", "prompts": "prompts/list"}


Entries: TypeAlias = list[dict[str, Any]]
AT_ONCE = 16
"""Servers that are connected to at one time."""
PAUSE = 0.5
"""Seconds before a list that lacks servers which are still starting is asked for again."""


class DoorClient:
    """One MCP session, spoken with a door."""

    def __init__(self, actors: GatewayActors, limits: Limits, endpoint: str = "") -> None:
        self._actors = actors
        self._limits = limits
        self._endpoint = endpoint
        self._session: str | None = None
        self._next_id = 1
        self._server: dict[str, Any] | None = None
        self.missing: dict[str, str] = {}

    async def begin(self, *, acts: bool = False) -> dict[str, Any]:
        """The handshake, once; what the server said of itself. `acts`: as in `_request`, of what is to follow."""
        if self._server is None:
            params = {
                "protocolVersion": LATEST_HANDSHAKE,
                "capabilities": {},
                "clientInfo": {"name": "stagedoor-cli", "version": "1"},
            }
            self._server = await self._request("initialize", params, acts=acts)
            await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self._server

    async def servers(self) -> list[dict[str, Any]]:
        """Connects to each."""
        found: dict[str, dict[str, Any]] = {}
        places = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for name in self._actors.services.table.value.backends:
                nursery.start_soon(self._visit, name, found, places)
        return [{**entry, **found[entry["name"]]} for entry in servers_of(self._actors)]

    def alone(self, name: str) -> "DoorClient":
        """Another session, with this one server."""
        alone = name if name in self._actors.services.table.value.endpoints else self._endpoint
        return DoorClient(self._actors, self._limits, alone)

    async def _visit(self, name: str, found: dict[str, dict[str, Any]], places: trio.CapacityLimiter) -> None:
        client = self.alone(name)
        async with places:
            try:
                declared = (await client.begin()).get("capabilities", {})
                found[name] = {"counts": {kind: len(await client.list(kind)) for kind in LISTED if kind in declared}}
            except ClientFailedError as error:
                first, *lines = str(error).splitlines()
                # What is known of the server's end says more, if it is the server that does not work.
                status = self._actors.backends.status.get(name)
                known = status is not None and status.failure is not None
                found[name] = {} if known else {"error": {"message": first, "stderr": [s.strip() for s in lines]}}

    async def list(self, kind: Kind) -> list[dict[str, Any]]:
        """All pages. Servers that are still starting are waited for; those that don't start are `missing`."""
        declared = (await self.begin()).get("capabilities", {})
        if kind not in declared:
            return []
        until = trio.current_time() + self._limits.link_connect
        while True:
            items = await self._list(kind)
            self._add_failed()
            starting = {name for name in self.missing if not self._failed(name)}
            if not starting or len(self._actors.services.table.value.backends) < 2 or trio.current_time() > until:
                return items
            await trio.sleep(PAUSE)

    async def _list(self, kind: Kind) -> Entries:
        return await self.items(LIST_METHODS[kind])

    async def items(self, method: str) -> Entries:
        """All that is listed by this method, every page of it."""
        member = METHODS[method].items or ""
        items: Entries = []
        params: dict[str, Any] = {}
        self.missing = {}
        while True:
            result = await self._request(method, params)
            items += [item for item in result.get(member, []) if isinstance(item, dict)]
            missing = (result.get("_meta") or {}).get(MISSING)
            if isinstance(missing, dict):
                self.missing |= {str(name): str(why) for name, why in missing.items()}
            if result.get("nextCursor") is None:
                return items
            params = {"cursor": result["nextCursor"]}

    def _failed(self, name: str) -> bool:
        status = self._actors.backends.status.get(name)
        return status is not None and status.failure is not None

    def _add_failed(self) -> None:
        for name, status in self._actors.backends.status.items():
            if status.failure is not None:
                lines = (f"  {line}" for line in status.failure.diagnostics.stderr)
                self.missing[name] = "\n".join([status.last_error, *lines])

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool."""
        await self.begin(acts=True)
        return await self._request("tools/call", {"name": name, "arguments": arguments}, acts=True)

    async def _request(self, method: str, params: dict[str, Any], *, acts: bool = False) -> dict[str, Any]:
        """The result; `acts`: whether it was executed matters, if there is none."""
        id = self._next_id
        self._next_id += 1
        reply = await self._post({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        answer = await self._answer(reply, id)
        if "error" in answer:
            raise ClientFailedError(told(answer["error"], self._actors.backends.status, acts=acts))
        result: dict[str, Any] = answer.get("result", {})
        return result

    async def _post(self, message: dict[str, Any]) -> Reply:
        headers = {"mcp-session-id": self._session} if self._session is not None else {}
        reply = await self._actors.door.post(Post(self._endpoint, ANONYMOUS, headers, json.dumps(message).encode()))
        self._session = dict(reply.headers).get("mcp-session-id", self._session)
        return reply

    async def _answer(self, reply: Reply, id: int) -> dict[str, Any]:
        if isinstance(reply, Answer):
            answer: dict[str, Any] = json.loads(reply.body) if reply.body else {}
            return answer
        return await self._from_stream(reply, id)

    async def _from_stream(self, reply: Streaming, id: int) -> dict[str, Any]:
        decoder = sse.SseDecoder(2 * self._limits.message_bytes)
        try:
            while (chunk := await reply.source.receive()) is not None:
                for event in decoder.feed(chunk):
                    message = json.loads(event.data) if event.data else {}
                    if message.get("id") == id and "method" not in message:
                        return dict(message)
        finally:
            reply.source.close()
        raise ClientFailedError("the stream ended without an answer")


@asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[Client]:
    """A client; its first request raises ClientFailedError if nobody answers there."""
    if isinstance(target, UrlTarget):
        async with open_url(target, Limits()) as client:
            yield client
        return
    async with open_door(target) as client:
        yield client


@asynccontextmanager
async def open_door(target: Settings) -> AsyncIterator[DoorClient]:
    """A client of what a configuration names, without a gateway."""
    # Whoever asks once wants the whole list.
    table, limits = target.table, replace(target.limits, list_deadline=target.limits.link_connect)
    log, metrics = get_log("stagedoor.cli"), Metrics()
    key = lifecycle.ephemeral_sealer()
    async with (
        lifecycle.open_store("memory://", limits, log) as store,
        open_authorizing(store.shelf, key, log) as authorizing,
        lifecycle.open_connector(
            log,
            metrics,
            limits,
            target.secrets,
            credentials=authorizing.credentials,
            key=authorizing.key,
            new_privileges=target.new_privileges,
        ) as connector,
        open_system(lifecycle.crash_logger(log, metrics)) as system,
    ):
        actors = GatewayActors(system, lifecycle.services_for(table, limits, store, connector, key, metrics, log))
        yield DoorClient(actors, limits)
        with trio.move_on_after(limits.drain_deadline):
            await system.drain(limits.drain_deadline)
