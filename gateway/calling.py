"""The client behind `stagedoor ls` and `stagedoor call`: `gateway.client`, of a URL or of the gateway's own actors; and
how people are told of errors.

Over a configuration it is the aggregate that `/mcp` would serve, by the connections that the gateway makes; over a URL,
the one server there, as it is.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import trio

from actors.duplex import Duplex
from actors.endpoints.merged import MISSING
from actors.protocol.methods import LIST_KINDS, METHODS, ListKind
from actors.protocol.table import Limits
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN
from actors.tree import GatewayActors
from actors.upstreams.backends import Status
from gateway.cli.client import Client, ClientFailedError, Target, UrlTarget
from gateway.client import Client as Session
from gateway.client import ClientError, McpError, RequestFailedError
from gateway.client import open_client as open_session
from gateway.config import Settings
from gateway.embedding import open_actors
from gateway.inside import Inside
from gateway.servers import servers_of

EXECUTED: Final = {
    "no": "the call was not executed",
    "unknown": "the call may have been executed",
    "yes": "the call was executed, and its result was lost",
}
"""What `data.executed` means, in plain words."""
AT_ONCE: Final = 16
"""Servers that are connected to at one time."""
PAUSE: Final = 0.5
"""Seconds before a list that lacks servers which are still starting is asked for again."""
INFO: Final = {"name": "stagedoor-cli", "version": "1"}

Entries: TypeAlias = list[dict[str, Any]]

_T = TypeVar("_T")


def told(error: Mapping[str, Any], statuses: Mapping[str, Status], *, acts: bool) -> str:
    """An error for people, who may know the address, with what is known of the server's end. `acts`: whether it was
    executed matters."""
    message = str(error.get("message", "the server answered with an error")).removeprefix("Internal error: ")
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    status = statuses.get(str(data.get("backend")))
    if status is not None and status.failure is not None and status.failure.message in message:
        message = message.replace(status.failure.message, status.last_error)
    lines = [message, *(f"  {line}" for line in _texts(data.get("stderr")))]
    servers = data.get("servers")
    for server in servers if isinstance(servers, list) else ():
        if isinstance(server, dict):
            lines.append(_told_of(server, statuses))
    if data.get("more"):
        lines.append(f"  and {data['more']} more")
    executed = EXECUTED.get(str(data.get("executed"))) if acts else None
    return "\n".join([*lines, *([f"  {executed}"] if executed else [])])


def _told_of(server: Mapping[str, Any], statuses: Mapping[str, Status]) -> str:
    """One server of several that don't work."""
    name, message, stderr = str(server.get("backend")), str(server.get("message")), _texts(server.get("stderr"))
    status = statuses.get(name)
    if status is not None and status.failure is not None:
        message, stderr = status.last_error, [*status.failure.diagnostics.stderr]
    return "\n".join([f"  server {name!r}: {message}", *(f"    {line}" for line in stderr)])


def _texts(value: object) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list) else []


class Asking:
    """A client that connects with its first question, and says for people what goes wrong. `name`: of whoever is asked,
    where they need to be told; `within` are the seconds for the handshake, and `patience` those for an answer;
    `hints`: what is told besides, by the status of HTTP by which it refuses."""

    def __init__(
        self,
        opened: AbstractAsyncContextManager[Session],
        stack: AsyncExitStack,
        *,
        name: str = "",
        within: float = math.inf,
        patience: float = math.inf,
        hints: Mapping[int | None, str] = MappingProxyType({}),
        statuses: Mapping[str, Status] = MappingProxyType({}),
    ) -> None:
        self._opened = opened
        self._stack = stack
        self._name = name
        self._within, self._patience = within, patience
        self._hints = hints
        self._statuses = statuses
        self._client: Session | None = None
        self.missing: dict[str, str] = {}

    async def begun(self, *, acts: bool = False) -> Session:
        """The client. `acts`: whether what is to follow is executed matters."""
        if self._client is None:
            entered = self._stack.enter_async_context(self._opened)
            self._client = await self._answer(entered, self._within, acts=acts)
        return self._client

    async def list(self, kind: ListKind) -> Entries:
        """All that is listed of a kind; servers that are not in it are `missing`."""
        return await self.items(f"{kind}/list") if kind in (await self.begun()).capabilities else []

    async def items(self, method: str) -> Entries:
        """All that is listed by this method, every page of it."""
        client, member = await self.begun(), METHODS[method].items or ""
        items: Entries = []
        params: dict[str, Any] = {}
        self.missing = {}
        while True:
            result = await self._in_time(client.request(method, params), acts=False)
            items += [item for item in result.get(member, []) if isinstance(item, dict)]
            missing = (result.get("_meta") or {}).get(MISSING)
            if isinstance(missing, dict):
                self.missing |= {str(name): str(why) for name, why in missing.items()}
            if result.get("nextCursor") is None:
                return items
            params = {"cursor": result["nextCursor"]}

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool."""
        client = await self.begun(acts=True)
        return (await self._in_time(client.call_tool(name, arguments), acts=True)).raw

    async def _in_time(self, answer: Awaitable[_T], *, acts: bool) -> _T:
        async def timed() -> _T:
            with trio.fail_after(self._patience):
                return await answer

        return await self._answer(timed(), self._patience, acts=acts)

    async def _answer(self, answer: Awaitable[_T], within: float, *, acts: bool) -> _T:
        whose = f"{self._name}: " if self._name else ""
        try:
            return await answer
        except trio.TooSlowError:
            raise ClientFailedError(f"{whose}no answer within {within:g} s") from None
        except McpError as error:
            hint = self._hints.get(error.status, "")
            raise ClientFailedError(told(error.raw, self._statuses, acts=acts) + hint) from error
        except ClientError as error:
            executed = f"\n  {EXECUTED[error.executed]}" if acts else ""
            hint = self._hints.get(error.status, "") if isinstance(error, RequestFailedError) else ""
            raise ClientFailedError(f"{whose}{error}{hint}{executed}") from error
        except ValueError as error:
            raise ClientFailedError(f"{whose}{error}") from error


class UrlClient:
    """The one server at a URL, as it is."""

    def __init__(self, target: UrlTarget, asking: Asking) -> None:
        self._target = target
        self._asking = asking
        self.list, self.call = asking.list, asking.call

    @property
    def missing(self) -> dict[str, str]:
        """As in `Asking`."""
        return self._asking.missing

    async def servers(self) -> Entries:
        """The one there is."""
        entry: dict[str, Any] = {"name": self._target.url.partition("?")[0], "transport": "http"}
        try:
            client = await self._asking.begun()
            counts = {kind: len(await self.list(kind)) for kind in LIST_KINDS if kind in client.capabilities}
        except ClientFailedError as error:
            return [{**entry, "status": "failing", "error": {"message": str(error)}}]
        return [
            {
                **entry,
                "status": "healthy",
                "era": "modern" if client.protocol_version == MODERN else "legacy",
                "revision": client.protocol_version,
                "server": client.server_info.get("name"),
                "version": client.server_info.get("version"),
                "counts": counts,
            }
        ]


@asynccontextmanager
async def open_url(target: UrlTarget, limits: Limits) -> AsyncIterator[UrlClient]:
    """A client; its first request raises ClientFailedError if nobody answers there."""
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
    within, patience = limits.link_connect, limits.request_deadline
    opened = open_session(target.url, headers=headers, info=INFO, within=within)
    async with AsyncExitStack() as stack:
        name = target.url.partition("?")[0]
        hints: dict[int | None, str] = {
            HTTPStatus.UNAUTHORIZED: ": it does not take this token"
            if target.token
            else " (--token, or $STAGEDOOR_TOKEN)"
        }
        if urlsplit(name).path in ("", "/"):
            hints[HTTPStatus.NOT_FOUND] = f" (is it at {name.rstrip('/')}/mcp?)"
        asking = Asking(opened, stack, name=name, within=within, patience=patience, hints=hints)
        yield UrlClient(target, asking)


# Over a configuration ------------------------------------------------------------------------------------------


class ConfiguredClient:
    """A client of the gateway's own actors: of one endpoint, all that is configured or one server."""

    def __init__(self, actors: GatewayActors, duplex: Duplex, nursery: trio.Nursery, asking: Asking) -> None:
        self._actors = actors
        self._duplex = duplex
        self._nursery = nursery
        self._asking = asking
        self.begun, self.items, self.call = asking.begun, asking.items, asking.call
        self.missing: dict[str, str] = {}

    async def servers(self) -> Entries:
        """Connects to each."""
        found: dict[str, dict[str, Any]] = {}
        places = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for name in self._actors.services.table.value.backends:
                nursery.start_soon(self._visit, name, found, places)
        return [{**entry, **found[entry["name"]]} for entry in servers_of(self._actors)]

    @asynccontextmanager
    async def alone(self, name: str) -> "AsyncIterator[ConfiguredClient]":
        """Another one, of this one server."""
        endpoint = name if name in self._actors.services.table.value.endpoints else ""
        async with open_inside(self._actors, self._duplex, self._nursery, endpoint) as client:
            yield client

    async def _visit(self, name: str, found: dict[str, dict[str, Any]], places: trio.CapacityLimiter) -> None:
        async with places, self.alone(name) as client:
            try:
                declared = (await client.begun()).capabilities
                found[name] = {
                    "counts": {kind: len(await client.list(kind)) for kind in LIST_KINDS if kind in declared}
                }
            except ClientFailedError as error:
                first, *lines = str(error).splitlines()
                # What is known of the server's end says more, if it is the server that does not work.
                status = self._actors.backends.status.get(name)
                known = status is not None and status.failure is not None
                found[name] = {} if known else {"error": {"message": first, "stderr": [s.strip() for s in lines]}}

    async def list(self, kind: ListKind) -> Entries:
        """All pages. Servers that are still starting are waited for; those that don't start are `missing`."""
        until = trio.current_time() + self._actors.services.limits.link_connect
        while True:
            items = await self._asking.list(kind)
            self.missing = self._asking.missing | self._failed()
            starting = self.missing.keys() - self._failed().keys()
            if not starting or len(self._actors.services.table.value.backends) < 2 or trio.current_time() > until:
                return items
            await trio.sleep(PAUSE)

    def _failed(self) -> dict[str, str]:
        return {
            name: "\n".join([status.last_error, *(f"  {line}" for line in status.failure.diagnostics.stderr)])
            for name, status in self._actors.backends.status.items()
            if status.failure is not None
        }


@asynccontextmanager
async def open_inside(
    actors: GatewayActors, duplex: Duplex, nursery: trio.Nursery, endpoint: str = ""
) -> AsyncIterator[ConfiguredClient]:
    """A client of an endpoint, with a session there."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Session]:
        async with open_session(Inside(duplex, endpoint, nursery), LATEST_HANDSHAKE, info=INFO) as session:
            yield session

    async with AsyncExitStack() as stack:
        asking = Asking(opened(), stack, statuses=actors.backends.status)
        yield ConfiguredClient(actors, duplex, nursery, asking)


@asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[Client]:
    """A client; its first request raises ClientFailedError if nobody answers there."""
    if isinstance(target, UrlTarget):
        async with open_url(target, Limits()) as client:
            yield client
        return
    async with open_configured(target) as client:
        yield client


@asynccontextmanager
async def open_configured(target: Settings) -> AsyncIterator[ConfiguredClient]:
    """A client of what a configuration names, without a gateway: whoever has the file has its servers too, so rules for
    clients do not count."""
    # Whoever asks once wants the whole list.
    limits = replace(target.limits, list_deadline=target.limits.link_connect)
    whole = replace(target, limits=limits, table=replace(target.table, policy=None))
    async with (
        open_actors(whole, "stagedoor.cli") as (actors, duplex),
        trio.open_nursery() as nursery,
        open_inside(actors, duplex, nursery) as client,
    ):
        yield client
