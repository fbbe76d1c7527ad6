"""The client behind `stagedoor ls` and `stagedoor call` for a URL, and how people are told of errors."""

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

import trio

from actors.endpoints.merged import MISSING
from actors.protocol.table import Limits
from actors.protocol.versions import MODERN
from actors.upstreams.backends import Status
from gateway.cli.client import ClientFailedError, Kind, UrlTarget
from gateway.client import Client, ClientError, McpError, open_client

LISTED: Final[tuple[Kind, ...]] = ("tools", "resources", "prompts")
"""The kinds of things that servers are asked for, in this order; each has the name of the capability."""
EXECUTED: Final = {
    "no": "the call was not executed",
    "unknown": "the call may have been executed",
    "yes": "the call was executed, and its result was lost",
}
"""What `data.executed` means, in plain words."""
INFO: Final = {"name": "stagedoor-cli", "version": "1"}

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


class UrlClient:
    """The one server at a URL, as it is. It is connected to by the first question."""

    def __init__(self, target: UrlTarget, stack: AsyncExitStack, limits: Limits) -> None:
        self._target = target
        self._stack = stack
        self._limits = limits
        self._client: Client | None = None
        self.missing: dict[str, str] = {}

    async def servers(self) -> list[dict[str, Any]]:
        """The one there is."""
        entry: dict[str, Any] = {"name": self._target.url.partition("?")[0], "transport": "http"}
        try:
            client = await self._begun(acts=False)
            counts = {kind: len(await self.list(kind)) for kind in LISTED if kind in client.capabilities}
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

    async def list(self, kind: Kind) -> list[dict[str, Any]]:
        """All pages; servers that are not in them are `missing`."""
        client = await self._begun(acts=False)
        if kind not in client.capabilities:
            return []
        entries: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        self.missing = {}
        while True:
            result = await self._in_time(client.request(f"{kind}/list", params), acts=False)
            entries += result.get(kind, [])
            missing = (result.get("_meta") or {}).get(MISSING)
            if isinstance(missing, dict):
                self.missing |= {str(name): str(why) for name, why in missing.items()}
            if result.get("nextCursor") is None:
                return entries
            params = {"cursor": result["nextCursor"]}

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool."""
        client = await self._begun(acts=True)
        return (await self._in_time(client.call_tool(name, arguments), acts=True)).raw

    async def _begun(self, *, acts: bool) -> Client:
        if self._client is None:
            headers = {"Authorization": f"Bearer {self._target.token}"} if self._target.token else {}
            within = self._limits.link_connect
            opened = open_client(self._target.url, headers=headers, info=INFO, within=within)
            self._client = await self._answer(self._stack.enter_async_context(opened), within, acts=acts)
        return self._client

    async def _in_time(self, answer: Awaitable[_T], *, acts: bool) -> _T:
        async def timed() -> _T:
            with trio.fail_after(self._limits.request_deadline):
                return await answer

        return await self._answer(timed(), self._limits.request_deadline, acts=acts)

    async def _answer(self, answer: Awaitable[_T], within: float, *, acts: bool) -> _T:
        name = self._target.url.partition("?")[0]
        try:
            return await answer
        except trio.TooSlowError:
            raise ClientFailedError(f"{name}: no answer within {within:g} s") from None
        except McpError as error:
            raise ClientFailedError(told(error.raw, {}, acts=acts)) from error
        except ClientError as error:
            executed = f"\n  {EXECUTED[error.executed]}" if acts else ""
            raise ClientFailedError(f"{name}: {error}{executed}") from error
        except ValueError as error:
            raise ClientFailedError(f"{name}: {error}") from error


@asynccontextmanager
async def open_url(target: UrlTarget, limits: Limits) -> AsyncIterator[UrlClient]:
    """A client; its first request raises ClientFailedError if nobody answers there."""
    async with AsyncExitStack() as stack:
        yield UrlClient(target, stack, limits)
