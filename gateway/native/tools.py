"""From functions to tools, and from what they return to results."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from pydantic_core import from_json

from gateway.native import content, functions, schemas
from gateway.native.content import Content, ToolResult
from gateway.native.definitions import Description, Icons, ToolDefinition
from gateway.native.functions import Function, Handler
from gateway.native.providers import Calling, ToolExecutor, require
from gateway.native.request import Request, Response
from gateway.native.revisions import fit
from gateway.native.schemas import Arguments, Output
from gateway.native.validation import Schema

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""2025-11-25, server/tools, "Tool Names"."""


class Tool(Struct, frozen=True):
    """A function that the model may call."""

    definition: ToolDefinition
    arguments: Arguments
    output: Output | None
    handler: Handler | Calling

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `tools/list`."""
        return self.definition.describe(version)

    def result(self, value: Any, version: str) -> dict[str, Any]:
        """The result of a call that returned this value. TypeError if its schema forbids it."""
        if isinstance(value, Response):
            value = value.tool_result()
        if isinstance(value, ToolResult):
            if self.output and not value.is_error:
                self.output.check(value.structured)
            return _tool_result(self._readable(value) if value.is_error else value, version)
        if self.output and _are_contents(value):
            blocks = [entry if isinstance(entry, str) else content.block(entry, version) for entry in value]
            return _tool_result(ToolResult(value, self.output.dump(blocks)), version)
        if self.output:
            structured = self.output.dump(value)
            return _tool_result(ToolResult([content.to_json(structured).decode()], structured), version)
        return _tool_result(ToolResult(_contents(value)), version)

    def _readable(self, failure: ToolResult) -> ToolResult:
        """A failure whose structured output its schema forbids says it as text alone: a server's structured output
        fits the schema (2025-11-25, server/tools, "Output Schema"), and clients that look would see no failure at all.
        """
        if failure.structured is None or self.output is None or self.output.fits(failure.structured):
            return failure
        text = content.to_json(failure.structured).decode()
        return ToolResult([*(c for c in failure.content if c != text), text], is_error=True)


def failed(text: str, version: str) -> dict[str, Any]:
    """The result of a call that failed, for the model to read."""
    return _tool_result(ToolResult([text], is_error=True), version)


def tool(
    function: Function,
    *,
    name: str | None,
    title: str | None,
    description: Description,
    hints: Mapping[str, Any] | None,
    icons: Icons,
    structured: bool,
    input_schema: Schema | None,
    output_schema: Schema | None,
) -> Tool:
    """A tool made of this function. TypeError and ValueError say what it lacks."""
    name = _checked_name(functions.name_of(function, name))
    handler = functions.read(function)
    if input_schema is None and handler.takes(Request) and not handler.parameters:
        input_schema = {"type": "object"}
    arguments = Arguments(name, handler.parameters, input_schema)
    output = Output(output_schema) if output_schema is not None else None
    if output is None and structured:
        output = schemas.output_of(handler.returns)
    definition = ToolDefinition(
        name,
        description or handler.doc,
        input_schema or arguments.schema,
        output_schema or (output.schema if output else None),
        title,
        hints,
        icons,
    )
    return Tool(definition, arguments, output, handler)


def executed(executor: ToolExecutor) -> Tool:
    """A tool made of this object. TypeError and ValueError say what it lacks."""
    definition = getattr(executor, "definition", None)
    if not isinstance(definition, ToolDefinition):
        raise TypeError(f"{executor!r}: its definition is no ToolDefinition")
    require(executor, "execute")
    output = None if definition.output_schema is None else Output(definition.output_schema)
    arguments = Arguments(_checked_name(definition.name), (), definition.input_schema)
    return Tool(definition, arguments, output, Calling(executor.execute))


def _checked_name(name: str) -> str:
    if not _TOOL_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a tool: 1 to 128 of A-Z a-z 0-9 _ - .")
    return name


def _tool_result(result: ToolResult, version: str) -> dict[str, Any]:
    structured: Any = result.structured
    if not isinstance(structured, dict | None):  # a model, say, is an object once it is JSON
        structured = from_json(content.to_json(structured))
    value = {
        "content": [content.block(c, version) for c in result.content],
        "structuredContent": structured,
        "isError": result.is_error,
    }
    return fit("tool_result", value, version)


def _are_contents(value: Any) -> bool:
    """Whether it is a list of contents, and not of texts alone, which are values too."""
    return (
        isinstance(value, (list, tuple))
        and all(isinstance(entry, (str, *content.CONTENT_TYPES)) for entry in value)
        and not all(isinstance(entry, str) for entry in value)
    )


def _contents(value: Any) -> Sequence[Content | str]:
    if value is None:
        return []
    if isinstance(value, (str, *content.CONTENT_TYPES)):
        return [value]
    if isinstance(value, (list, tuple)) and all(isinstance(v, (str, *content.CONTENT_TYPES)) for v in value):
        return value
    return [content.to_json(value).decode()]
