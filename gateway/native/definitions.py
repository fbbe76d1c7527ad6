"""How what a server offers describes itself, in the newest terms; `revisions.fit` cuts it down for older clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.native.revisions import fit
from gateway.native.validation import JsonSchema, Schema

Icons: TypeAlias = Sequence[Mapping[str, Any]] | None

Description: TypeAlias = str | Callable[[], str | None] | None
"""A text, or a function that is asked for it whenever it is listed."""


def said(description: Description) -> str | None:
    """The text as it is now. TypeError for what is none, and whatever the function raises."""
    text = description() if callable(description) else description
    if text is not None and not isinstance(text, str):
        raise TypeError(f"a description is a text, and this is {type(text).__name__}")
    return text


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as it stands in a list. Its description and its schemas may be functions, asked whenever it is listed."""

    name: str
    description: Description = None
    input_schema: Schema = field(default_factory=lambda: {"type": "object"})
    output_schema: Schema | None = None
    title: str | None = None
    hints: Mapping[str, Any] | None = None
    icons: Icons = None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `tools/list`. ValueError for what is no schema, and whatever its functions raise."""
        schema = self.output_schema
        output = None if schema is None else JsonSchema(schema, f"{self.name}: output_schema").listed
        entry = {
            "name": self.name,
            "title": self.title,
            "description": said(self.description),
            "inputSchema": JsonSchema(self.input_schema, f"{self.name}: input_schema").listed,
            "outputSchema": output,
            "annotations": self.hints,
            "icons": self.icons,
        }
        return fit("tool", entry, version)


PromptArguments: TypeAlias = Sequence[Mapping[str, Any] | str]
"""Each in wire form (`name`, `title`, `description`, `required`), or the name of one that may be left out."""


def declared(arguments: PromptArguments) -> list[dict[str, Any]]:
    """All in wire form. ValueError for one without a name, or two of one name."""
    every: list[dict[str, Any]] = []
    for argument in arguments:
        given = {"name": argument} if isinstance(argument, str) else dict(argument)
        if not isinstance(given.get("name"), str) or given["name"] in {a["name"] for a in every}:
            raise ValueError(f"{argument!r}: each argument of a prompt needs a name of its own")
        every.append({"required": False, **given})
    return every


@dataclass(frozen=True, slots=True)
class PromptDefinition:
    """A prompt as it stands in a list. Its description may be a function, asked whenever it is listed."""

    name: str
    description: Description = None
    arguments: PromptArguments = ()
    title: str | None = None
    icons: Icons = None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `prompts/list`. Whatever its function raises."""
        entry = {
            "name": self.name,
            "title": self.title,
            "description": said(self.description),
            "arguments": [_argument(argument, version) for argument in declared(self.arguments)],
            "icons": self.icons,
        }
        return fit("prompt", entry, version)


def _argument(argument: Mapping[str, Any], version: str) -> dict[str, Any]:
    known = ("name", "title", "description", "required")
    return fit("argument", {member: argument.get(member) for member in known}, version)


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """A resource as it stands in a list, for lists made by a function."""

    uri: str
    name: str
    title: str | None = None
    description: Description = None
    mime_type: str | None = None
    size: int | None = None
    icons: Icons = None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `resources/list`."""
        entry = {
            "uri": self.uri,
            "name": self.name,
            "title": self.title,
            "description": said(self.description),
            "mimeType": self.mime_type,
            "size": self.size,
            "icons": self.icons,
        }
        return fit("resource", entry, version)


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """A template as it stands in a list."""

    uri_template: str
    name: str
    title: str | None = None
    description: Description = None
    mime_type: str | None = None
    icons: Icons = None

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `resources/templates/list`."""
        entry = {
            "uriTemplate": self.uri_template,
            "name": self.name,
            "title": self.title,
            "description": said(self.description),
            "mimeType": self.mime_type,
            "icons": self.icons,
        }
        return fit("template", entry, version)
