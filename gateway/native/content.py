"""What tools, prompts and resources give back, as values, and how it looks on the wire."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import pydantic_core
from pydantic_core import from_json

from actors.protocol.versions import can_use

Role: TypeAlias = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the model. A plain `str` does the same."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture."""

    data: bytes = field(repr=False)
    mime_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound."""

    data: bytes = field(repr=False)
    mime_type: str = "audio/wav"


@dataclass(frozen=True, slots=True)
class Link:
    """Points to a resource that the client may read."""

    uri: str
    name: str
    description: str | None = None
    mime_type: str | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """A resource put into the result whole: text, or bytes."""

    uri: str
    content: str | bytes = field(repr=False)
    mime_type: str | None = None


Content: TypeAlias = Text | Image | Audio | Link | Embedded
"""What a tool or a message is made of. A plain `str` is a `Text`."""
CONTENT_TYPES = (Text, Image, Audio, Link, Embedded)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's result, said in full: for a mix of contents and structured output, or an error with contents."""

    content: Sequence[Content | str] = ()
    structured: Mapping[str, Any] | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt, or of a conversation handed to the client's model.

    For a model, `content` may also be blocks in wire form, as sampling with tools needs them (`tool_use`,
    `tool_result`).
    """

    role: Role
    content: Content | str | Sequence[Mapping[str, Any]]


def user(content: Content | str) -> Message:
    """A message of the user."""
    return Message("user", content)


def assistant(content: Content | str) -> Message:
    """A message of the model."""
    return Message("assistant", content)


def to_json(value: Any) -> bytes:
    """JSON of anything made of plain values, dataclasses, dates and pydantic models; ValueError for the rest."""
    return pydantic_core.to_json(value, inf_nan_mode="null", by_alias=True)


def block(value: Content | str, version: str) -> dict[str, Any]:
    """A content block as `version` knows it: a link becomes text before 2025-06-18, a sound an embedded resource
    before 2025-03-26. TypeError for what is no content."""
    match value:
        case str():
            return {"type": "text", "text": value}
        case Text(text):
            return {"type": "text", "text": _text(text)}
        case Image(data, mime_type):
            return {"type": "image", "data": base64(data), "mimeType": _text(mime_type)}
        case Audio(data, mime_type) if can_use(version, "audio"):
            return {"type": "audio", "data": base64(data), "mimeType": _text(mime_type)}
        case Audio(data, mime_type):
            return {"type": "resource", "resource": contents("audio:inline", data, mime_type)}
        case Link(uri, name) if not can_use(version, "resource_link"):
            return {"type": "text", "text": f"{name}: {uri}"}
        case Link(uri, name, description, mime_type):
            optional = {"description": description, "mimeType": mime_type}
            return {"type": "resource_link", "uri": _text(uri), "name": _text(name)} | _present(optional)
        case Embedded(uri, content, mime_type):
            return {"type": "resource", "resource": contents(uri, content, mime_type)}
    raise TypeError(f"{type(value).__name__} is no content")


def contents(uri: str, content: str | bytes, mime_type: str | None) -> dict[str, Any]:
    """An entry of `resources/read`, also the inside of an embedded resource."""
    body = {"text": content} if isinstance(content, str) else {"blob": base64(content)}
    return {"uri": _text(uri)} | _present({"mimeType": mime_type}) | body


def message(value: Message, version: str) -> dict[str, Any]:
    """A message of a prompt. TypeError for blocks in wire form, which only models read, and for roles that are none."""
    if not isinstance(value.content, (str, *CONTENT_TYPES)):
        raise TypeError("a message of a prompt holds one content")
    if value.role not in get_args(Role):
        raise TypeError(f"{value.role!r} is no role in a prompt")
    return {"role": value.role, "content": block(value.content, version)}


def for_model(value: Message, version: str) -> dict[str, Any]:
    """A message for `sampling/createMessage`, which knows text, images and sounds. ValueError for what the client's
    model can't be given."""
    match value.content:
        case Link(uri, name):
            sampled: Any = block(f"{name}: {uri}", version)
        case Embedded(content=str() as text):
            sampled = block(text, version)
        case Embedded() as embedded:
            raise ValueError(f"a model can't be given the bytes of {embedded.uri}")
        case Audio() if not can_use(version, "audio"):
            raise ValueError("this client knows no sounds")
        case str() | Text() | Image() | Audio():
            sampled = block(value.content, version)
        case blocks:
            sampled = [dict(b) for b in blocks]
            if not can_use(version, "sampling_arrays"):
                if len(sampled) != 1:
                    raise ValueError("this client takes one content in a message")
                [sampled] = sampled
    return {"role": value.role, "content": sampled}


def base64(data: bytes) -> str:
    """Bytes as JSON carries them."""
    return b64encode(data).decode("ascii")


def _present(values: Mapping[str, str | None]) -> dict[str, Any]:
    return {k: _text(v) for k, v in values.items() if v is not None}


def text_of(value: Any) -> Any:
    """As text, what is one once it is JSON: a pydantic URL, a path, an enum of texts. Anything else as it is."""
    if value is None or isinstance(value, (str, bytes, bytearray)):
        return value
    try:
        plain = from_json(to_json(value))
    except ValueError:  # it is nothing in JSON
        return value
    return plain if isinstance(plain, str) else value


def _text(value: Any) -> str:
    text = text_of(value)
    if not isinstance(text, str):
        raise TypeError(f"what should be text is of type {type(value).__name__}")
    return text
