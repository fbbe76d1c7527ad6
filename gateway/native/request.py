"""What a handler may take instead of plain arguments: the request as it came, and a response to be put together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct
from pydantic_core import from_json

from actors.protocol.errors import INTERNAL
from actors.protocol.rights import NO_RIGHTS, Rights
from gateway.native.content import (
    Audio,
    Content,
    Embedded,
    Image,
    Link,
    Message,
    Role,
    Text,
    ToolResult,
    contents,
    to_json,
)
from gateway.native.context import Client, Context
from gateway.native.errors import RpcError

if TYPE_CHECKING:
    from gateway.native.server import Server

_INLINE: Final = "blob:inline"
"""The URI of bytes that have none, in a content that must have one."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `principal` is the name that the gateway knows it by, None where nobody was asked for one;
    `rights` are those of the token that came with this very request."""

    principal: str | None
    client: Client
    rights: Rights = NO_RIGHTS

    @property
    def groups(self) -> frozenset[str]:
        """The groups that the caller is in."""
        return self.rights.groups

    @property
    def scopes(self) -> frozenset[str]:
        """The scopes of the caller's token."""
        return self.rights.scopes

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client declared, in wire form."""
        return self.client.capabilities


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a tool, a prompt or a resource; the name of that one is there, the others are None.

    For a resource `uri` is what is read, `uri_template` the template that it matched, if one did.
    """

    context: Context
    tool: str | None = None
    prompt: str | None = None
    resource: str | None = None
    uri: str | None = None
    uri_template: str | None = None
    given: bytes | Mapping[str, Any] = field(default=b"{}", repr=False)

    @property
    def params(self) -> dict[str, Any]:
        """The arguments, as JSON has them; of a resource the variables of its template."""
        return from_json(self.given) if isinstance(self.given, bytes) else dict(self.given)

    @property
    def caller(self) -> Caller:
        """Who sent it."""
        return Caller(self.context.principal, self.context.client, self.context.rights)

    @property
    def server(self) -> "Server":
        """The server that answers it."""
        server: Server = self.context.server
        return server


class _Failure(Struct, frozen=True):
    message: str
    details: Any


class Response:
    """An answer, put together part by part: `return res.text("Here it is:").image(png).send()`.

    For a tool the parts are its contents, for a prompt its messages (`user` and `llm` say whose they are), for a
    resource what can be read at its URI. One that is returned, or written and nothing else returned, is sent.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Role, Content]] = []
        self._role: Role = "user"
        self._structured: Any = None
        self._failure: _Failure | None = None
        self._sent = False

    @property
    def written(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._sent or self._failure or self._parts)

    def text(self, body: str, mime: str | None = None) -> Self:
        """A text; `mime` is for resources."""
        return self._add(Text(body) if mime is None else Embedded("", body, mime))

    def image(self, data: bytes, mime: str = "image/png") -> Self:
        """A picture."""
        return self._add(Image(data, mime))

    def audio(self, data: bytes, mime: str = "audio/wav") -> Self:
        """A sound."""
        return self._add(Audio(data, mime))

    def blob(self, data: bytes, mime: str = "application/octet-stream", uri: str = "") -> Self:
        """Bytes of any kind."""
        return self._add(Embedded(uri, data, mime))

    def resource(self, uri: str, content: str | bytes, mime: str | None = None) -> Self:
        """A resource, whole."""
        return self._add(Embedded(uri, content, mime))

    def link(self, uri: str, name: str | None = None) -> Self:
        """Points to a resource."""
        return self._add(Link(uri, name or uri))

    def user(self, text: str | None = None) -> Self:
        """What follows is said by the user."""
        return self._speak("user", text)

    def llm(self, text: str | None = None) -> Self:
        """What follows is said by the model."""
        return self._speak("assistant", text)

    def system(self, text: str | None = None) -> Self:
        """What follows is said to the model before all else; the protocol knows no such role, so it is the user's."""
        return self._speak("user", text)

    def send(self, structured: Any = None) -> Self:
        """It is complete. `structured` is the structured output of a tool. RuntimeError if it was complete before."""
        self._open()
        self._structured, self._sent = structured, True
        return self

    def error(self, message: str, details: Any = None) -> Self:
        """It failed instead: for the model to read where it is a tool, else a JSON-RPC error with the details as its
        data. `details` is any JSON value. RuntimeError if it was complete before."""
        self._open()
        self._failure, self._sent = _Failure(message, details), True
        return self

    def _add(self, part: Content) -> Self:
        self._open()
        self._parts.append((self._role, part))
        return self

    def _speak(self, role: Role, text: str | None) -> Self:
        self._open()
        self._role = role
        return self if text is None else self.text(text)

    def _open(self) -> None:
        if self._sent:
            raise RuntimeError("the response is complete; nothing can be added to it")

    # For the server -------------------------------------------------------------------------------------------

    def tool_result(self) -> ToolResult:
        """As the result of a tool."""
        if self._failure:
            return _failed(self._failure)
        parts = [_placed(part, _INLINE) for _, part in self._parts]
        if self._structured is None:
            return ToolResult(parts)
        plain = to_json(self._structured)
        return ToolResult(parts or [Text(plain.decode())], from_json(plain))

    def messages(self) -> list[Message]:
        """As the messages of a prompt. RpcError."""
        self._refuse()
        return [Message(role, _placed(part, _INLINE)) for role, part in self._parts]

    def contents(self, uri: str, mime_type: str | None) -> list[dict[str, Any]]:
        """As the contents of the resource at `uri`. RpcError."""
        self._refuse()
        return [part_of(part, uri, mime_type) for _, part in self._parts]

    def _refuse(self) -> None:
        if self._failure:
            raise RpcError(INTERNAL, self._failure.message, self._failure.details)


def _failed(failure: _Failure) -> ToolResult:
    if failure.details is None:
        return ToolResult([failure.message], is_error=True)
    plain = to_json(failure.details)
    details = from_json(plain)
    return ToolResult([failure.message, plain.decode()], details if isinstance(details, dict) else None, is_error=True)


def _placed(part: Content, uri: str) -> Content:
    """With a URI where the part has none; text needs none."""
    match part:
        case Embedded("", str() as text):
            return Text(text)
        case Embedded("", data, mime_type):
            return Embedded(uri, data, mime_type)
        case _:
            return part


def part_of(part: Content | str, uri: str, mime_type: str | None) -> dict[str, Any]:
    """A part of the resource at `uri`, in wire form. TypeError for what a resource can't hold."""
    match part:
        case str(text) | Text(text):
            return contents(uri, text, mime_type or "text/plain")
        case Image(data, mime) | Audio(data, mime):
            return contents(uri, data, mime)
        case Embedded(own, content, mime):
            return contents(own or uri, content, mime if own else mime or mime_type)
        case Link():
            raise TypeError("a resource holds no links")
    raise TypeError(f"{type(part).__name__} is no part of a resource")
