"""From functions to prompts and completers, and from what they return to results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from trio import CapacityLimiter

from gateway.native import content, functions
from gateway.native.content import Message
from gateway.native.context import Context
from gateway.native.definitions import Description, Icons, PromptArguments, PromptDefinition, declared, said
from gateway.native.functions import Function, Handler, Parameter
from gateway.native.providers import Calling, PromptTemplate, require
from gateway.native.request import Request, Response
from gateway.native.schemas import Arguments, texts

COMPLETIONS: Final = 100
"""Values in one answer to `completion/complete` (server/utilities/completion)."""
_SAID: Final = (Message, str, *content.CONTENT_TYPES)
"""What a prompt is made of."""


class Prompt(Struct, frozen=True):
    """A function that writes the messages a user picked by name."""

    definition: PromptDefinition
    arguments: Arguments
    handler: Handler | Calling

    def describe(self, version: str) -> dict[str, Any]:
        """Its entry in `prompts/list`."""
        return self.definition.describe(version)

    def result(self, value: Any, version: str) -> dict[str, Any]:
        """The result of `prompts/get` for what the function returned."""
        description = said(self.definition.description)
        described = {"description": description} if description else {}
        return described | {"messages": [content.message(m, version) for m in _messages(value)]}


def prompt(
    function: Function,
    *,
    name: str | None,
    title: str | None,
    description: Description,
    icons: Icons,
    arguments: PromptArguments | None,
) -> Prompt:
    """A prompt whose arguments are those of this function, or those given; they arrive as text."""
    named, handler = functions.name_of(function, name), functions.read(function)
    described = description or handler.doc
    if arguments is None:
        taken = Arguments(named, handler.parameters)
        fields = taken.schema["properties"]
        arguments = [{**fields[p.alias], "name": p.alias, "required": p.required} for p in handler.parameters]
    else:
        taken = _taken(named, handler.parameters, arguments)
    return Prompt(PromptDefinition(named, described, arguments, title, icons), taken, handler)


def written(template: PromptTemplate) -> Prompt:
    """A prompt made of this object. TypeError and ValueError say what it lacks."""
    definition = getattr(template, "definition", None)
    if not isinstance(definition, PromptDefinition):
        raise TypeError(f"{template!r}: its definition is no PromptDefinition")
    require(template, "get")
    return Prompt(definition, _taken(definition.name, (), definition.arguments), Calling(template.get))


def _taken(name: str, parameters: tuple[Parameter, ...], arguments: PromptArguments) -> Arguments:
    every = declared(arguments)
    required = (argument["name"] for argument in every if argument["required"])
    return Arguments(name, parameters, texts((argument["name"] for argument in every), required))


class Completer(Struct, frozen=True):
    """A function that completes an argument: it takes what is typed so far, and `arguments` if it wants the others."""

    handler: Handler
    typed: str
    wants_others: bool

    async def __call__(
        self, context: Context, typed: str, others: Mapping[str, str], threads: CapacityLimiter
    ) -> Iterable[str]:
        """The values that fit."""
        values = {self.typed: typed} | ({"arguments": others} if self.wants_others else {})
        found: Iterable[str] = await self.handler(Request(context), values, threads)
        return found


def completer(function: Function) -> Completer:
    """A completer made of this function. TypeError for other parameters."""
    handler = functions.read(function)
    names = [p.name for p in handler.parameters]
    if not names or names[0] == "arguments" or names[1:] not in ([], ["arguments"]):
        raise TypeError("a completer takes what is typed so far, then perhaps `arguments`, those filled in already")
    return Completer(handler, names[0], len(names) == 2)


def completion_result(values: Iterable[str]) -> dict[str, Any]:
    """The first hundred values, and how many there are. TypeError if they are no texts."""
    every = list(values)
    if isinstance(values, str) or not all(isinstance(value, str) for value in every):
        raise TypeError("a completer returns a list of texts")
    return {"completion": {"values": every[:COMPLETIONS], "total": len(every), "hasMore": len(every) > COMPLETIONS}}


def _messages(value: Any) -> Sequence[Message]:
    if isinstance(value, Response):
        return value.messages()
    if isinstance(value, _SAID):
        return [_message(value)]
    if not isinstance(value, Iterable) or isinstance(value, (Mapping, bytes, bytearray)):
        raise _none_of(value)
    return [_message(part) for part in value]


def _message(part: Any) -> Message:
    if not isinstance(part, _SAID):
        raise _none_of(part)
    return part if isinstance(part, Message) else content.user(part)


def _none_of(value: Any) -> TypeError:
    return TypeError(f"a prompt returns text, contents or messages, and no {type(value).__name__}")
