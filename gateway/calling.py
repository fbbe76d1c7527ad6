"""The client behind `stagedoor ls` and `stagedoor call`, and how people are told of errors."""

import math
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import trio

from actors.endpoints.merged import MISSING
from actors.protocol.methods import LIST_KINDS, METHODS, ListKind
from actors.protocol.table import Limits
from actors.protocol.versions import MODERN
from actors.upstreams.backends import Status
from gateway.cli.client import ClientFailedError, UrlTarget
from gateway.client import Client, ClientError, McpError, open_client

EXECUTED: Final = {
    "no": "the call was not executed",
    "unknown": "the call may have been executed",
    "yes": "the call was executed, and its result was lost",
}
"""What `data.executed` means, in plain words."""
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
    where they need to be told; `within` are the seconds for the handshake, and `patience` those for an answer."""

    def __init__(
        self,
        opened: AbstractAsyncContextManager[Client],
        stack: AsyncExitStack,
        *,
        name: str = "",
        within: float = math.inf,
        patience: float = math.inf,
        statuses: Mapping[str, Status] = MappingProxyType({}),
    ) -> None:
        self._opened = opened
        self._stack = stack
        self._name = name
        self._within, self._patience = within, patience
        self._statuses = statuses
        self._client: Client | None = None
        self.missing: dict[str, str] = {}

    async def begun(self, *, acts: bool = False) -> Client:
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
            raise ClientFailedError(told(error.raw, self._statuses, acts=acts)) from error
        except ClientError as error:
            executed = f"\n  {EXECUTED[error.executed]}" if acts else ""
            raise ClientFailedError(f"{whose}{error}{executed}") from error
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
    opened = open_client(target.url, headers=headers, info=INFO, within=within)
    async with AsyncExitStack() as stack:
        name = target.url.partition("?")[0]
        yield UrlClient(target, Asking(opened, stack, name=name, within=within, patience=patience))
