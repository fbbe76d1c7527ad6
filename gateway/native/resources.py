"""From functions to resources and templates, and from what they return to contents."""

from typing import Any

from msgspec import Struct

from gateway.native import content, functions, uris
from gateway.native.content import Audio, Embedded, Image, Link, Text
from gateway.native.definitions import Description, Icons, ResourceInfo, TemplateInfo
from gateway.native.functions import Function, Handler
from gateway.native.request import Request, Response, part_of
from gateway.native.schemas import Arguments, texts


class Resource(Struct, frozen=True):
    """One URI and the function that reads it. It changes by itself `every` so many seconds, if that is given."""

    info: ResourceInfo
    handler: Handler
    every: float | None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `resources/list`."""
        return self.info.describe(version)


class Template(Struct, frozen=True):
    """A family of URIs, the function that reads one, and the one that lists those there are."""

    info: TemplateInfo
    uri: uris.UriTemplate
    arguments: Arguments
    handler: Handler
    listing: Handler | None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `resources/templates/list`."""
        return self.info.describe(version)


def resource(
    function: Function,
    uri: str,
    *,
    name: str | None,
    title: str | None,
    description: Description,
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
    described = description or handler.doc
    named = functions.name_of(function, name)
    return Resource(ResourceInfo(uri, named, title, described, mime_type, None, icons), handler, every)


def template(
    function: Function,
    uri: str,
    *,
    name: str | None,
    title: str | None,
    description: Description,
    mime_type: str | None,
    icons: Icons,
    listing: Function | None,
) -> Template:
    """A template whose variables are the arguments of this function, or in the request that it takes."""
    handler, parsed = functions.read(function), uris.parse(uri)
    taken, names = {p.alias for p in handler.parameters}, set(parsed.names)
    if taken - names or (taken < names and not handler.takes(Request)):
        raise TypeError(f"{uri}: the function's arguments must be {', '.join(parsed.names)}")
    described = description or handler.doc
    info = TemplateInfo(uri, functions.name_of(function, name), title, described, mime_type, icons)
    return Template(
        info,
        parsed,
        Arguments(uri, handler.parameters, texts(parsed.names) if taken < names else None),
        handler,
        functions.read(listing) if listing else None,
    )


def read_result(uri: str, mime_type: str | None, value: Any) -> dict[str, Any]:
    """The result of `resources/read` for what the function returned: text, bytes, parts, or any JSON value. TypeError
    for what a resource can't hold."""
    match value:
        case Response():
            parts = value.contents(uri, mime_type)
        case str():
            parts = [content.contents(uri, value, mime_type or "text/plain")]
        case bytes():
            parts = [content.contents(uri, value, mime_type or "application/octet-stream")]
        case bytearray():
            parts = [content.contents(uri, bytes(value), mime_type or "application/octet-stream")]
        case Text() | Image() | Audio() | Embedded() | Link():
            parts = [part_of(value, uri, mime_type)]
        case [*entries] if any(isinstance(entry, content.CONTENT_TYPES) for entry in entries):
            parts = [part_of(entry, uri, mime_type) for entry in entries]
        case _:
            parts = [content.contents(uri, content.to_json(value).decode(), mime_type or "application/json")]
    return {"contents": parts}
