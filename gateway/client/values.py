"""Results as typed values. Each has the JSON that it was read from as `raw`: what is unknown here is there."""

import base64
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gateway.client.errors import InvalidAnswerError

W = TypeVar("W", bound="Wire")


class Wire(Struct, rename="camel", kw_only=True):
    """A value of the wire, under Python's spelling of its names."""

    raw: dict[str, Any] = msgspec.field(default_factory=dict, name=" raw")


class Contents(Wire):
    """A text or bytes at a URI."""

    uri: str = ""
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None

    @property
    def data(self) -> bytes:
        """What is there, as bytes."""
        return (self.text or "").encode() if self.blob is None else base64.b64decode(self.blob)


class Content(Wire):
    """One piece: `type` says which of the others it has."""

    type: str
    text: str | None = None
    data: str | None = None
    mime_type: str | None = None
    resource: Contents | None = None
    uri: str | None = None
    name: str | None = None

    @property
    def bytes(self) -> bytes:
        """Of an image or a sound."""
        return base64.b64decode(self.data or "")


class CallResult(Wire):
    """What a tool returned; `is_error` says that it failed, and the content why."""

    content: list[Content] = []
    structured_content: Any = None
    is_error: bool = False

    @property
    def text(self) -> str:
        """All texts of it."""
        return "\n".join(piece.text for piece in self.content if piece.text is not None)


class ReadResult(Wire):
    """What a resource holds."""

    contents: list[Contents]

    @property
    def text(self) -> str:
        """All texts of it."""
        return "\n".join(piece.text for piece in self.contents if piece.text is not None)


class Message(Wire):
    """One message of a prompt."""

    role: str
    content: Content


class PromptResult(Wire):
    """What a prompt says."""

    messages: list[Message]
    description: str | None = None


class Completion(Wire):
    """What an argument may go on with."""

    values: list[str]
    total: int | None = None
    has_more: bool = False


class Tool(Wire):
    """A tool, as it stands in a list."""

    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


class Resource(Wire):
    """A resource, as it stands in a list."""

    uri: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None


class ResourceTemplate(Wire):
    """A template of resources, as it stands in a list."""

    uri_template: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None


class Argument(Wire):
    """An argument of a prompt."""

    name: str
    description: str | None = None
    required: bool = False


class Prompt(Wire):
    """A prompt, as it stands in a list."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[Argument] = []


class Update(Wire):
    """A resource has changed: the one that was subscribed to, or one inside it."""

    uri: str


def mapping(value: Any) -> Mapping[str, Any]:
    """What has members: of a value that a server put in the place of an object, none."""
    return value if isinstance(value, dict) else {}


def typed(kind: type[W], raw: Any) -> W:
    """Raises InvalidAnswerError. Null stands for what is not there, as some servers write it."""
    try:
        value = msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        try:
            value = msgspec.convert(_without_nulls(raw), kind)
        except msgspec.ValidationError as error:
            raise InvalidAnswerError(f"not a {kind.__name__}: {error}") from None
    _attach(value, raw)
    return value


def _without_nulls(raw: Any) -> Any:
    return {name: value for name, value in raw.items() if value is not None} if isinstance(raw, dict) else raw


def _attach(value: object, raw: Any) -> None:
    if isinstance(value, Wire):
        value.raw = raw
        for field in msgspec.structs.fields(value):
            if field.encode_name in raw:
                _attach(getattr(value, field.name), raw[field.encode_name])
    elif isinstance(value, list) and value and isinstance(value[0], Wire):
        for one, its in zip(value, raw, strict=True):
            _attach(one, its)
