"""From functions to what a server offers: tools, resources, templates, prompts, and how each describes itself."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from trio import CapacityLimiter

from gateway.native import content, functions, schemas, uris
from gateway.native.content import Content, Embedded, Message, ToolResult
from gateway.native.context import Context
from gateway.native.functions import Function, Handler
from gateway.native.revisions import fit
from gateway.native.schemas import Arguments, Output

Icons: TypeAlias = Sequence[Mapping[str, Any]] | None

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""2025-11-25, server/tools, "Tool Names"."""

COMPLETIONS: Final = 100
"""Values in one answer to `completion/complete` (server/utilities/completion)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    title: str | None
    description: str | None
    hints: Mapping[str, Any] | None
    icons: Icons
    arguments: Arguments
    output: Output | None
    handler: Handler

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `tools/list`."""
        entry = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.arguments.schema,
            "outputSchema": self.output.schema if self.output else None,
            "annotations": self.hints,
            "icons": self.icons,
        }
        return fit("tool", entry, version)

    def result(self, value: Any, version: str) -> dict[str, Any]:
        """The result of a call that returned this value."""
        if isinstance(value, ToolResult):
            return _tool_result(value, version)
        if self.output:
            structured = self.output.dump(value)
            return _tool_result(ToolResult([content.to_json(structured).decode()], structured), version)
        return _tool_result(ToolResult(_contents(value)), version)


def failed(text: str, version: str) -> dict[str, Any]:
    """The result of a call that failed, for the model to read."""
    return _tool_result(ToolResult([text], is_error=True), version)


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """A resource as it stands in a list, for lists made by a function."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: Icons = None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `resources/list`."""
        entry = {
            "uri": self.uri,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime_type,
            "size": self.size,
            "icons": self.icons,
        }
        return fit("resource", entry, version)


@dataclass(frozen=True, slots=True)
class Resource:
    """One URI and the function that reads it. It changes by itself `every` so many seconds, if that is given."""

    info: ResourceInfo
    handler: Handler
    every: float | None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `resources/list`."""
        return self.info.describe(version)


@dataclass(frozen=True, slots=True)
class Template:
    """A family of URIs, the function that reads one, and the one that lists those there are."""

    uri: uris.UriTemplate
    name: str
    title: str | None
    description: str | None
    mime_type: str | None
    icons: Icons
    arguments: Arguments
    handler: Handler
    listing: Handler | None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `resources/templates/list`."""
        entry = {
            "uriTemplate": self.uri.text,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime_type,
            "icons": self.icons,
        }
        return fit("template", entry, version)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A function that writes the messages a user picked by name."""

    name: str
    title: str | None
    description: str | None
    icons: Icons
    arguments: Arguments
    handler: Handler

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `prompts/list`."""
        properties = self.arguments.schema["properties"]
        arguments = [
            fit(
                "argument",
                {
                    "name": p.name,
                    "title": properties[p.name].get("title"),
                    "description": properties[p.name].get("description"),
                    "required": p.required,
                },
                version,
            )
            for p in self.handler.parameters
        ]
        entry = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "arguments": arguments,
            "icons": self.icons,
        }
        return fit("prompt", entry, version)

    def result(self, value: Any, version: str) -> dict[str, Any]:
        """The result of `prompts/get` for what the function returned."""
        described = {"description": self.description} if self.description else {}
        return described | {"messages": [content.message(m, version) for m in _messages(value)]}


def tool(
    function: Function,
    *,
    name: str | None,
    title: str | None,
    description: str | None,
    hints: Mapping[str, Any] | None,
    icons: Icons,
    structured: bool,
) -> Tool:
    """A tool made of this function. TypeError and ValueError say what it lacks."""
    name = functions.name_of(function, name)
    if not _TOOL_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a tool: 1 to 128 of A-Z a-z 0-9 _ - .")
    handler = functions.read(function)
    return Tool(
        name,
        title,
        functions.description_of(function, description),
        hints,
        icons,
        Arguments(name, handler.parameters),
        schemas.output_of(handler.returns) if structured else None,
        handler,
    )


def resource(
    function: Function,
    uri: str,
    *,
    name: str | None,
    title: str | None,
    description: str | None,
    mime_type: str | None,
    icons: Icons,
    every: float | None,
) -> Resource:
    """A resource read by this function, which takes nothing but a context."""
    handler = functions.read(function)
    if every is not None and every <= 0:
        raise ValueError(f"{uri}: every must be more than 0 seconds")
    if handler.parameters:
        raise TypeError(f"{uri}: the function of a resource takes no arguments; a template does")
    described = functions.description_of(function, description)
    named = functions.name_of(function, name)
    return Resource(ResourceInfo(uri, named, title, described, mime_type, None, icons), handler, every)


def template(
    function: Function,
    uri: str,
    *,
    name: str | None,
    title: str | None,
    description: str | None,
    mime_type: str | None,
    icons: Icons,
    listing: Function | None,
) -> Template:
    """A template whose variables are the arguments of this function."""
    handler, parsed = functions.read(function), uris.parse(uri)
    if {p.name for p in handler.parameters} != set(parsed.names):
        raise TypeError(f"{uri}: the function's arguments must be {', '.join(parsed.names)}")
    return Template(
        parsed,
        functions.name_of(function, name),
        title,
        functions.description_of(function, description),
        mime_type,
        icons,
        Arguments(uri, handler.parameters),
        handler,
        functions.read(listing) if listing else None,
    )


def prompt(function: Function, *, name: str | None, title: str | None, description: str | None, icons: Icons) -> Prompt:
    """A prompt whose arguments are those of this function; they arrive as text."""
    named, handler = functions.name_of(function, name), functions.read(function)
    described = functions.description_of(function, description)
    return Prompt(named, title, described, icons, Arguments(named, handler.parameters), handler)


@dataclass(frozen=True, slots=True)
class Completer:
    """A function that completes an argument: it takes what is typed so far, and `arguments` if it wants the others."""

    handler: Handler
    typed: str
    wants_others: bool

    async def __call__(
        self, context: Context, typed: str, others: Mapping[str, str], threads: CapacityLimiter
    ) -> Iterable[str]:
        """The values that fit."""
        values = {self.typed: typed} | ({"arguments": others} if self.wants_others else {})
        found: Iterable[str] = await self.handler(context, values, threads)
        return found


def completer(function: Function) -> Completer:
    """A completer made of this function. TypeError for other parameters."""
    handler = functions.read(function)
    names = [p.name for p in handler.parameters]
    if not names or names[0] == "arguments" or names[1:] not in ([], ["arguments"]):
        raise TypeError("a completer takes what is typed so far, then perhaps `arguments`, those filled in already")
    return Completer(handler, names[0], len(names) == 2)


def read_result(uri: str, mime_type: str | None, value: Any) -> dict[str, Any]:
    """The result of `resources/read` for what the function returned: text, bytes, parts, or any JSON value."""
    match value:
        case str():
            parts = [content.contents(uri, value, mime_type or "text/plain")]
        case bytes():
            parts = [content.contents(uri, value, mime_type or "application/octet-stream")]
        case Embedded() | [Embedded(), *_]:
            several = [value] if isinstance(value, Embedded) else value
            parts = [content.contents(e.uri, e.content, e.mime_type) for e in several]
        case _:
            parts = [content.contents(uri, content.to_json(value).decode(), mime_type or "application/json")]
    return {"contents": parts}


def completion_result(values: Iterable[str]) -> dict[str, Any]:
    """The first hundred values, and how many there are."""
    every = list(values)
    return {"completion": {"values": every[:COMPLETIONS], "total": len(every), "hasMore": len(every) > COMPLETIONS}}


def _tool_result(result: ToolResult, version: str) -> dict[str, Any]:
    value = {
        "content": [content.block(c, version) for c in result.content],
        "structuredContent": result.structured,
        "isError": result.is_error,
    }
    return fit("tool_result", value, version)


def _contents(value: Any) -> Sequence[Content | str]:
    if value is None:
        return []
    if isinstance(value, (str, *content.CONTENT_TYPES)):
        return [value]
    if isinstance(value, (list, tuple)) and all(isinstance(v, (str, *content.CONTENT_TYPES)) for v in value):
        return value
    return [content.to_json(value).decode()]


def _messages(value: Any) -> Sequence[Message]:
    if isinstance(value, Message):
        return [value]
    if isinstance(value, (str, *content.CONTENT_TYPES)):
        return [content.user(value)]
    return [m if isinstance(m, Message) else content.user(m) for m in value]
