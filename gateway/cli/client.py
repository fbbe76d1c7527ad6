"""What `ls` and `call` need of an MCP client; composition brings the one that the gateway itself uses."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import trio
from msgspec import Struct

from actors.protocol.methods import ListKind
from gateway.config import Settings

if TYPE_CHECKING:
    from actors.protocol.definitions import Definitions


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """A gateway, or any MCP server, that is running."""

    url: str
    token: str | None = field(default=None, repr=False)


Target: TypeAlias = UrlTarget | Settings
"""Where to look: at a running gateway, or at what a configuration names, without a gateway."""


class ClientFailedError(Exception):
    """It could not be done; the text is for the person at the terminal: nobody answers there, no such tool, …"""


class ServeFailedError(Exception):
    """It can't be served; the text is a sentence for the person at the terminal."""


class Client(Protocol):
    """An MCP session, which begins with the first request."""

    @property
    def missing(self) -> dict[str, str]:
        """Why servers are not in what was listed, by name."""

    async def servers(self) -> list[dict[str, Any]]:
        """Connects to every server, and tells how each is: at least `name`, and as far as known `transport`, `status`,
        `era`, `revision`, `version`, `counts`, and `error` with its `message` and `stderr`."""

    async def list(self, kind: ListKind) -> list[dict[str, Any]]:
        """All entries of a kind, every page of them, as the protocol has them."""

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool as the protocol has it, `isError` included."""


OpenClient: TypeAlias = Callable[[Target], AbstractAsyncContextManager[Client]]
"""Opens a client for the time of a block. It and the client raise ClientFailedError, alone or in a group."""


AskGateway: TypeAlias = Callable[[str, str | None], Awaitable[list[dict[str, Any]] | None]]
"""How the servers of a running gateway are, by its URL and that of its admin listener, if that is known; None: no admin
listener was found."""


def _no_stdio(settings: Callable[[], Settings]) -> int:
    return 1


def _no_workers(settings: object, *_: object) -> int:
    return 1


Operate: TypeAlias = Callable[
    [str, str | None, str, str, Mapping[str, str]], Awaitable[tuple[int, dict[str, Any]] | None]
]
"""Lists sessions (`list`), or acts on the one of this name, by the URL of a running gateway, that of its admin listener
if it is known, and options: an HTTP status and a JSON object; None: no admin listener was found."""


Verify: TypeAlias = Callable[[Settings | None, tuple[Path, ...], bool], dict[str, Any]]
"""Checks the audit trail in files by the keys of a configuration; whether the first lines may be missing. What it found
as JSON has it: `good`, `signed`, `chains`, `foreign`, `torn`. Raises OSError."""


def _no_trail(settings: Settings | None, files: tuple[Path, ...], partial: bool) -> dict[str, Any]:
    return {"good": True, "signed": False, "chains": [], "foreign": [], "torn": []}


async def _no_doctor(settings: Settings) -> list[dict[str, Any]]:
    await trio.lowlevel.checkpoint()
    return []


async def _no_operator(url: str, admin: str | None, what: str, name: str, options: Mapping[str, str]) -> None:
    await trio.lowlevel.checkpoint()


async def _no_gateway(url: str, admin: str | None) -> None:
    await trio.lowlevel.checkpoint()


Compare: TypeAlias = Callable[
    [str, str | None, Callable[[bytes], Mapping[str, str]]], Awaitable[tuple[int, dict[str, Any]] | None]
]
"""What a configuration would change at a running gateway, by its URL and that of its admin listener, if that is known,
and what makes digests with a key; an HTTP status and a JSON object, None: no admin listener was found."""


async def _no_comparison(*_: object) -> tuple[int, dict[str, Any]] | None:
    await trio.lowlevel.checkpoint()
    return None


async def _nothing_defined(settings: Settings, names: tuple[str, ...]) -> dict[str, Any]:
    await trio.lowlevel.checkpoint()
    return {}


class Parts(Struct, frozen=True):
    """What the commands need of composition. `run` serves until a signal and returns the exit status; when it listens,
    it calls back with the settings as they came out; `run_alone` is the same with nothing for operators. `supervise`
    does the same by several workers, which find their servers again by the arguments that name them; `work` is one of
    them, by the descriptor of the channel to its supervisor. `stdio` serves on the standard streams, which are out of
    reach for all else before it gets its settings. `define` says by server what it defines at present, or why
    that can't be had."""

    run: Callable[[Settings, Callable[[Settings], None]], int]
    open_client: OpenClient
    ask_gateway: AskGateway = _no_gateway
    supervise: Callable[[Settings, tuple[str, ...], Callable[[Settings], None]], int] = _no_workers
    work: Callable[[Callable[[], Settings], int], int] = _no_workers
    operate: Operate = _no_operator
    stdio: Callable[[Callable[[], Settings]], int] = _no_stdio
    run_alone: Callable[[Settings, Callable[[Settings], None]], int] = _no_workers
    verify: Verify = _no_trail
    compare: Compare = _no_comparison
    examine: Callable[[Settings], Awaitable[list[dict[str, Any]]]] = _no_doctor
    define: "Callable[[Settings, tuple[str, ...]], Awaitable[Mapping[str, Definitions | str]]]" = _nothing_defined
