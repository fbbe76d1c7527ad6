"""What a user of the client does for servers: sampling, elicitation, roots, and the log."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from actors.protocol import errors
from gateway.client.errors import McpError

Handler: TypeAlias = Callable[[dict[str, Any]], Any]
"""Takes the params as they came; it may be an async function."""
Roots: TypeAlias = Callable[..., Any] | Sequence[str | Mapping[str, Any]]
"""A handler, or the folders themselves."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """What may be asked of this client is what there is a handler for."""

    sampling: Handler | None = None
    elicitation: Handler | None = None
    roots: Roots | None = None
    log: Handler | None = None

    def capabilities(self) -> dict[str, Any]:
        """As servers are told."""
        said: dict[str, Any] = {}
        if self.sampling is not None:
            said["sampling"] = {}
        if self.elicitation is not None:
            said["elicitation"] = {"form": {}, "url": {}}
        if self.roots is not None:
            said["roots"] = {}
        return said

    def handler(self, method: str) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None:
        """Who answers this; None: nobody."""
        match method:
            case "sampling/createMessage" if self.sampling is not None:
                return self._sample
            case "elicitation/create" if self.elicitation is not None:
                return self._elicit
            case "roots/list" if self.roots is not None:
                return self._list_roots
        return None

    async def _sample(self, params: dict[str, Any]) -> dict[str, Any]:
        """A text stands for a message of the assistant."""
        said = await given(self.sampling, params)
        if isinstance(said, str):
            return {"role": "assistant", "content": {"type": "text", "text": said}, "model": "unknown"}
        return _object("sampling", said)

    async def _elicit(self, params: dict[str, Any]) -> dict[str, Any]:
        """A word stands for the action."""
        said = await given(self.elicitation, params)
        return {"action": said} if isinstance(said, str) else _object("elicitation", said)

    async def _list_roots(self, params: dict[str, Any]) -> dict[str, Any]:
        """URIs stand for roots without names, a sequence for the whole result."""
        said = await given(self.roots, params) if callable(self.roots) else self.roots
        if isinstance(said, Mapping):
            return dict(said)
        return {"roots": [{"uri": root} if isinstance(root, str) else dict(root) for root in said or ()]}


async def given(handler: Callable[..., Any] | None, *values: Any) -> Any:
    """What a function returns, async or not."""
    assert handler is not None
    result = handler(*values)
    return await result if inspect.isawaitable(result) else result


def _object(name: str, said: Any) -> dict[str, Any]:
    if isinstance(said, Mapping):
        return dict(said)
    raise McpError(errors.INTERNAL, f"The handler for {name} gave no answer")
