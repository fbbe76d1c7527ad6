"""What a handler can do beside returning: report progress, log, keep state, and ask the client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import trio

from actors.protocol.capabilities import LEVELS
from actors.protocol.outcomes import KEY, KEY_FORM
from actors.protocol.rights import NO_RIGHTS, Rights
from actors.protocol.versions import LATEST_HANDSHAKE, can_use
from gateway.native import content
from gateway.native.content import Message
from gateway.native.errors import ClientUnableError, Feature, ToolError, UrlElicitation
from gateway.native.forms import Action, Form
from gateway.native.revisions import fit

T = TypeVar("T")

Level: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

_CAME_WITH: Final[Mapping[Feature, str]] = {
    "elicitation": "elicitation",
    "elicitation.url": "url_elicitation",
    "sampling.tools": "sampling_tools",
}
"""By the names in `actors.protocol.versions`; the others are as old as the protocol."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who is on the other side, as it introduced itself: when its session began, or with the request where there are no
    sessions. `revision` is the one that the server speaks with it."""

    name: str = ""
    version: str = ""
    title: str | None = None
    revision: str = LATEST_HANDSHAKE
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    def introduced(self, info: Mapping[str, Any]) -> "Client":
        """The same, of this name."""
        name, version, title = (info.get(member) for member in ("name", "version", "title"))
        return replace(
            self, name=str(name or ""), version=str(version or ""), title=None if title is None else str(title)
        )

    def can(self, feature: Feature) -> bool:
        """Whether the client declared the feature, in a revision that has it.

        An empty `elicitation` means forms alone (2025-11-25, client/elicitation, "Capabilities"); before that
        revision `sampling` was all there was, `includeContext` with it.
        """
        if feature in _CAME_WITH and not can_use(self.revision, _CAME_WITH[feature]):
            return False
        kind, _, part = feature.partition(".")
        declared = self.capabilities.get(kind)
        if not isinstance(declared, dict):
            return False
        if feature == "elicitation":
            return not declared or "form" in declared
        if feature == "sampling.context" and not can_use(self.revision, "sampling_tools"):
            return True
        return not part or part in declared


@dataclass(frozen=True, slots=True)
class Sample:
    """What the client's model said. `content` is in wire form; `text` joins its text blocks."""

    role: str
    content: tuple[Mapping[str, Any], ...]
    model: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """All text of the answer."""
        return "".join(block.get("text", "") for block in self.content if block.get("type") == "text")


@dataclass(frozen=True, slots=True)
class Elicited(Generic[T]):
    """What the user did with a form. `content` is there when `action` is `accept`."""

    action: Action
    content: T | None = None


@dataclass(frozen=True, slots=True)
class Root:
    """A folder that the client lets servers work in."""

    uri: str
    name: str | None = None


class Peer(Protocol):
    """What a context needs of its session."""

    server: Any
    principal: str | None
    client: Client
    state: Any
    level: Level

    async def ask(self, method: str, params: Mapping[str, Any] | None, related: Any) -> Any: ...

    def notify(self, method: str, params: Mapping[str, Any], related: Any) -> None: ...

    def is_running(self, id: int | str) -> bool: ...

    def resource_updated(self, uri: str) -> None: ...

    def list_changed(self, kind: Literal["tools", "resources", "prompts"]) -> None: ...

    def visited_by(self, elicitations: Sequence[UrlElicitation]) -> None: ...


class Context:
    """Belongs to one request of one client. Everything it sends travels with that request."""

    def __init__(
        self,
        peer: Peer,
        request: int | str,
        token: int | str | None = None,
        rights: Rights = NO_RIGHTS,
        client: Client | None = None,
    ) -> None:
        self.rights = rights
        """What the token of this request says of the caller: issuer, subject, client, groups, scopes."""
        self._peer = peer
        self._client = client
        self._request = request
        self._token = token
        self._progress = -inf

    @property
    def client(self) -> Client:
        """The client, its revision and capabilities."""
        return self._client or self._peer.client

    @property
    def principal(self) -> str | None:
        """The name that the gateway knows the caller by; None where nobody was asked for one."""
        return self._peer.principal

    @property
    def server(self) -> Any:
        """The server that the handler belongs to."""
        return self._peer.server

    @property
    def state(self) -> Any:
        """What `Server(state=…)` made for this session; it lives as long as the session."""
        return self._peer.state

    def can(self, feature: Feature) -> bool:
        """Whether the client can do this; asking one that can't raises ClientUnableError."""
        return self.client.can(feature)

    def require(self, feature: Feature) -> None:
        """ClientUnableError if the client can't do this: to say so before anything is done."""
        if not self.can(feature):
            raise ClientUnableError(feature)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Reports progress, if the client wants to hear of it. Values that do not grow are not sent, nor any after
        the handler has returned (2025-11-25, utilities/progress, "Behavior Requirements"), nor what is not finite."""
        await trio.lowlevel.checkpoint()
        if self._token is None or not self._progress < progress < inf or self._related is None:
            return
        self._progress = progress
        if total is not None and not isfinite(total):
            total = None
        params = {"progressToken": self._token, "progress": progress, "total": total, "message": message}
        self._peer.notify("notifications/progress", fit("progress", params, self.client.revision), self._related)

    async def log(self, level: Level, data: Any, logger: str | None = None) -> None:
        """Sends a log message, text or any JSON value, if the client's level lets it pass."""
        await trio.lowlevel.checkpoint()
        if level not in LEVELS:
            raise ValueError(f"{level!r} is no level: one of {', '.join(LEVELS)}")
        if LEVELS.index(level) < LEVELS.index(self._peer.level):
            return
        params = {"level": level, "data": data} | ({"logger": logger} if logger else {})
        self._peer.notify("notifications/message", params, self._related)

    def updated(self, uri: str) -> None:
        """Tells this client, if it subscribed to the resource, that it changed. `Server.updated` tells all."""
        self._peer.resource_updated(uri)

    def list_changed(self, kind: Literal["tools", "resources", "prompts"]) -> None:
        """Tells this client that its list changed; for lists that depend on the session."""
        self._peer.list_changed(kind)

    async def roots(self, *, key: str | None = None) -> list[Root]:
        """The client's folders. Like all that asks the client: ClientUnableError if it never said that it can,
        ClientRefusedError if it answers with an error, ClientTimeoutError if it does not answer. The `key` is what a
        client without sessions knows the question by; without one it is a number."""
        self.require("roots")
        answer = await self._peer.ask("roots/list", _keyed({}, key) or None, self._related)
        return [Root(_expect(r, "uri", str), r.get("name")) for r in _expect(answer, "roots", list)]

    async def sample(
        self,
        messages: str | Message | Sequence[Message],
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] | None = None,
        model_preferences: Mapping[str, Any] | None = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Sample:
        """Has the client's model continue a conversation. `tools` and `tool_choice` are in wire form."""
        self.require("sampling.tools" if tools or tool_choice else "sampling")
        if include_context not in (None, "none"):
            self.require("sampling.context")
        params = {
            "messages": [content.for_model(m, self.client.revision) for m in _conversation(messages)],
            "maxTokens": max_tokens,
            "systemPrompt": system_prompt,
            "temperature": temperature,
            "stopSequences": stop_sequences,
            "modelPreferences": model_preferences,
            "includeContext": include_context,
            "tools": tools,
            "toolChoice": tool_choice,
        }
        given = {k: v for k, v in params.items() if v is not None}
        return _sample(await self._peer.ask("sampling/createMessage", _keyed(given, key), self._related))

    async def elicit(self, message: str, form: type[T] | Mapping[str, Any], *, key: str | None = None) -> Elicited[T]:
        """Asks the user to fill in a form: a pydantic model, dataclass or TypedDict with simple fields, or a JSON
        Schema. TypeError if it is no form; ToolError if the answer does not fit it. Never ask for secrets so."""
        self.require("elicitation")
        asked: Form[T] = Form(form)
        schema = asked.schema(self.client.revision)
        params = {"mode": "form", "message": message, "requestedSchema": schema}
        given = fit("elicitation", params, self.client.revision)
        answer = await self._peer.ask("elicitation/create", _keyed(given, key), self._related)
        action = _action(answer)
        return Elicited(action, asked.read(answer.get("content")) if action == "accept" else None)

    async def elicit_url(self, elicitation: UrlElicitation, *, key: str | None = None) -> Action:
        """Asks the user to visit a page. `accept` means that the user agreed, not that the visit is over: when it
        is, call `Server.elicitation_complete` with the id."""
        self.require("elicitation.url")
        self._peer.visited_by([elicitation])
        params = {
            "mode": "url",
            "message": elicitation.message,
            "url": elicitation.url,
            "elicitationId": elicitation.id,
        }
        return _action(await self._peer.ask("elicitation/create", _keyed(params, key), self._related))

    @property
    def _related(self) -> int | str | None:
        """The request, while its stream is there to carry what is sent."""
        return self._request if self._peer.is_running(self._request) else None


def _keyed(params: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """With the key that the request would have without sessions. ValueError for one that can't be."""
    if key is None:
        return {**params}
    if not KEY_FORM.fullmatch(key):
        raise ValueError(f"{key!r} is no key: 1 to 64 of A-Z a-z 0-9 _ - . and a letter or _ first")
    return {**params, "_meta": {KEY: key}}


def _conversation(messages: str | Message | Sequence[Message]) -> Sequence[Message]:
    if isinstance(messages, str):
        return [content.user(messages)]
    return [messages] if isinstance(messages, Message) else messages


def _sample(answer: Any) -> Sample:
    blocks = _expect(answer, "content", (dict, list))
    role, model = _expect(answer, "role", str), _expect(answer, "model", str)
    return Sample(role, tuple(blocks) if isinstance(blocks, list) else (blocks,), model, answer.get("stopReason"))


def _action(answer: Any) -> Action:
    action: Action = _expect(answer, "action", str)
    if action not in ("accept", "decline", "cancel"):
        raise ToolError(f"The client answered with an unknown action: {action!r}")
    return action


def _expect(answer: Any, member: str, kind: type | tuple[type, ...]) -> Any:
    """The member of an answer. ToolError: the client's answer is not what the protocol says."""
    value = answer.get(member) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise ToolError(f"The client's answer lacks a valid {member!r}")
    return value
