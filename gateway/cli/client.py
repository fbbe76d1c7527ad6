"""What `ls` and `call` need of an MCP client; composition brings the one that the gateway itself uses."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from gateway.config import Settings

Kind: TypeAlias = Literal["tools", "resources", "prompts"]


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """A gateway, or any MCP server, that is running."""

    url: str
    token: str | None = field(default=None, repr=False)


Target: TypeAlias = UrlTarget | Settings
"""Where to look: at a running gateway, or at what a configuration names, without a gateway."""


class ClientFailedError(Exception):
    """It could not be done; the text is for the person at the terminal: nobody answers there, no such tool, …"""


class Client(Protocol):
    """An MCP session that is ready."""

    def servers(self) -> list[dict[str, Any]]:
        """What is served: at least `name`, and as far as known `transport`, `status`, `version`."""

    async def list(self, kind: Kind) -> list[dict[str, Any]]:
        """All entries of a kind, every page of them, as the protocol has them."""

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool as the protocol has it, `isError` included."""


OpenClient: TypeAlias = Callable[[Target], AbstractAsyncContextManager[Client]]
"""Opens a client for the time of a block. It and the client raise ClientFailedError, alone or in a group."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the commands need of composition. `run` serves until a signal and returns the exit
    status; when it listens it calls back with the settings as they came out."""

    run: Callable[[Settings, Callable[[Settings], None]], int]
    open_client: OpenClient
