"""JSON Schemas from signatures: what goes into a handler, and the structured output that comes out of it."""

import inspect
from collections.abc import Iterable, Mapping
from itertools import islice
from types import NoneType, UnionType
from typing import Any, Final, Union, cast, get_args, get_origin

import msgspec
import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaValidator, core_schema, from_json

from actors.protocol.errors import BROKEN
from gateway.native.content import CONTENT_TYPES, ToolResult, to_json
from gateway.native.errors import COUNTED, SHOWN, BadValuesError, cut, explain, named
from gateway.native.functions import Parameter
from gateway.native.request import Response
from gateway.native.typed_dicts import make_legible
from gateway.native.validation import JsonSchema, Schema

_CONTENT = (Response, ToolResult, *CONTENT_TYPES)
_UNSTRUCTURED = (inspect.Signature.empty, Any, None, NoneType, str, object, bytes, *_CONTENT)
"""Return types that are contents by themselves, or say nothing."""

_SCHEMALESS = (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema)


class _Plain(GenerateJsonSchema):
    """Without the titles that pydantic makes of names: they say nothing that the names don't."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


SEARCHED: Final = 2048
"""Bytes of arguments in which every fault is looked for."""

_CONTAINERS: Final = frozenset(
    kind
    for kind in ("list", "tuple", "set", "frozenset", "dict")
    if "fail_fast" in inspect.signature(getattr(core_schema, f"{kind}_schema")).parameters
)
"""Core schemas that can be told to stop at the first fault."""
_SCHEMAS: Final = frozenset(
    {"schema", "items_schema", "keys_schema", "values_schema", "choices", "fields", "steps", "definitions"}
    | {"strict_schema", "lax_schema", "json_schema", "python_schema", "extras_schema", "arguments_schema"}
)
"""Where core schemas hold others; nothing else is looked into, since defaults and metadata are anything."""


def _failing_fast(model: type[BaseModel]) -> SchemaValidator:
    """A validator of the model that takes what the model takes, and stops at the first fault of a container."""
    schema = _fast(model.__pydantic_core_schema__)
    try:
        return SchemaValidator(schema, None, False)  # not with the validators that nested models have already
    except TypeError:  # an older pydantic, which has no such choice
        return SchemaValidator(schema)


def _fast(schema: Any) -> Any:
    if isinstance(schema, (list, tuple)):
        return type(schema)(_fast(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    if "type" not in schema or not isinstance(schema["type"], str):  # fields, or choices, by name
        return {name: _fast(part) for name, part in schema.items()}
    made = {key: _fast(value) if key in _SCHEMAS else value for key, value in schema.items()}
    return {**made, "fail_fast": True} if schema["type"] in _CONTAINERS else made


_LOOSER: Final = frozenset(
    {"set", "frozenset", "generator", "call", "named-tuple", "complex"}
    | {"function-before", "function-wrap", "function-plain"}
)
"""Core schemas that may take what their JSON Schemas exclude: doubles in a set, an object for a named tuple."""


def _is_looser(schema: Any) -> bool:
    """Whether anything in this core schema may be."""
    if isinstance(schema, (list, tuple)):
        return any(map(_is_looser, schema))
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields, or choices, by name
        return any(map(_is_looser, schema.values()))
    if kind == "enum":
        return "sub_type" not in schema and not all(isinstance(member.value, str) for member in schema["members"])
    return kind in _LOOSER or any(_is_looser(schema[key]) for key in _SCHEMAS & schema.keys())


class Arguments:
    """The arguments of one handler: their schema, and values checked against it. TypeError for types without one.

    With a schema `by_hand`, which need not name the handler's parameters alone, it is that which they must fit; what
    the handler has no parameter for does not reach it.
    """

    def __init__(self, name: str, parameters: tuple[Parameter, ...], by_hand: Schema | None = None) -> None:
        # Aliases, since a parameter may be called what a pydantic field may not: `schema`, `copy`, `_x`.
        self._names = {f"p{i}": p.name for i, p in enumerate(parameters)}
        for parameter in parameters:
            make_legible(parameter.annotation)
        fields = {f"p{i}": (p.annotation, _field(p)) for i, p in enumerate(parameters)}
        config = ConfigDict(extra="forbid" if by_hand is None else "ignore", allow_inf_nan=False)
        try:
            self._model: type[BaseModel] = create_model(name, __config__=config, **cast(Any, fields))
            derived = _root(self._model.model_json_schema(schema_generator=_Plain))
        except _SCHEMALESS as error:
            raise TypeError(f"{name}: {_formless(parameters)} a type without a JSON form") from error
        derived.setdefault("properties", {})
        self._known = derived["properties"]
        self._by_hand = by_hand is not None
        self._schema = JsonSchema(derived if by_hand is None else by_hand, f"{name}: input_schema")
        if self._by_hand:
            self._schema.require()
        self._validator = _failing_fast(self._model)
        self._looser = _is_looser(self._model.__pydantic_core_schema__)

    @property
    def schema(self) -> dict[str, Any]:
        """What they must fit. One made by a function may raise what it likes."""
        return self._schema.value

    def parse(self, arguments: bytes) -> dict[str, Any]:
        """Arguments by name from a JSON object, the defaults filled in; text that can be read as what is wanted is,
        since the arguments of prompts arrive as text. BadValuesError.

        Bad ones cost about as much as good ones: of each list and each mapping the first fault ends the search. Only
        short arguments are searched for all faults.
        """
        if self._by_hand:
            self._check(arguments)
        try:
            return self._by_name(self._validator.validate_json(arguments))
        except ValidationError as error:
            raise BadValuesError(self._explain(arguments, error)) from None

    def parse_exactly(self, arguments: bytes) -> dict[str, Any]:
        """The same for what must fit the schema as it is: `"5"` is no integer. BadValuesError."""
        if self._by_hand:
            return self.parse(arguments)
        try:
            taken = self._by_name(self._validator.validate_json(arguments, strict=True))
        except ValidationError:
            taken = self.parse(arguments)
        else:
            if not self._looser:
                return taken
        self._check(arguments)  # pydantic is stricter than the schema too: `1.0` is an integer
        return taken

    def _check(self, arguments: bytes) -> None:
        try:
            value = from_json(arguments)
        except ValueError as error:  # too deep, or numbers or escapes that nothing stands for
            raise BadValuesError(f"the arguments can't be read: {error}") from None
        fault = self._schema.fault(value, every=len(arguments) <= SEARCHED)
        if fault:
            raise BadValuesError(fault)

    def _explain(self, arguments: bytes, error: ValidationError) -> str:
        if error.error_count() > COUNTED and (unknown := self._unknown(arguments)):
            return named((f"{cut(name)}: Extra inputs are not permitted" for name in unknown), error.error_count())
        if len(arguments) <= SEARCHED:
            try:
                self._model.model_validate_json(arguments)
            except ValidationError as whole:
                if whole.error_count() <= COUNTED:
                    return explain(whole)
        return explain(error)

    def _unknown(self, arguments: bytes) -> list[str]:
        """The first arguments that are none."""
        try:
            present = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
        except BROKEN:
            return []
        return list(islice((name for name in present if name not in self._known), SHOWN))

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The same from values already decoded."""
        try:
            return self._by_name(self._model.model_validate(values))
        except ValidationError as error:
            raise BadValuesError(explain(error)) from None

    def _by_name(self, model: BaseModel) -> dict[str, Any]:
        return {name: getattr(model, key) for key, name in self._names.items()}


class Output:
    """The structured output of a tool, held to its schema."""

    def __init__(self, schema: Schema, adapter: TypeAdapter[Any] | None = None, *, wrapped: bool = False) -> None:
        self._schema = JsonSchema(schema, "output_schema")
        self._adapter = adapter
        self._wrapped = wrapped
        if adapter is None:
            self._schema.require()

    @property
    def schema(self) -> dict[str, Any]:
        """What it fits. One made by a function may raise what it likes."""
        return self._schema.value

    def dump(self, value: Any) -> dict[str, Any]:
        """What goes into `structuredContent`: an object as it is, anything else as `{"result": …}`. TypeError if the
        tool returned something else than it promised."""
        if self._adapter is None:
            self.check(value)
            return cast(dict[str, Any], from_json(to_json(value)))
        try:
            checked = self._adapter.validate_python(value)
        except ValidationError as error:
            raise TypeError(f"the tool returned what its return type excludes: {explain(error)}") from None
        dumped = self._adapter.dump_python(checked, mode="json", by_alias=True)
        plain = from_json(to_json(dumped))
        structured = {"result": plain} if self._wrapped else plain
        if not _is_finite(dumped):
            self.check(structured)  # what is not finite is null in JSON, which not every schema takes
        return cast(dict[str, Any], structured)

    def check(self, structured: Any) -> None:
        """TypeError if this value, as JSON has it, does not fit the schema."""
        fault = self._fault(structured)
        if fault:
            raise TypeError(f"the tool returned what its output schema forbids: {fault}")

    def fits(self, structured: Any) -> bool:
        """Whether this value, as JSON has it, fits the schema."""
        return self._fault(structured) is None

    def _fault(self, structured: Any) -> str | None:
        return self._schema.fault(from_json(to_json(structured)))


def _is_finite(dumped: Any) -> bool:
    """Whether no number in these plain values is infinite, or none at all. A text may be taken for one."""
    raw = pydantic_core.to_json(dumped, inf_nan_mode="constants")
    return b"NaN" not in raw and b"Infinity" not in raw


def output_of(annotation: Any) -> Output | None:
    """The structured output that a return annotation promises; None where the value is content, or nothing is said.

    TypeError for a type that has no JSON form.
    """
    if _is_content(annotation):
        return None
    make_legible(annotation)
    try:
        adapter = TypeAdapter(annotation)
        schema = _root(adapter.json_schema(mode="serialization", schema_generator=_Plain))
    except _SCHEMALESS as error:
        raise TypeError(f"the return type {annotation!r} has no JSON form; pass structured=False") from error
    if schema.get("type") == "object":
        return Output(schema, adapter)
    definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    wrapper = {"type": "object", "properties": {"result": schema}, "required": ["result"], **definitions}
    return Output(wrapper, adapter, wrapped=True)


def texts(names: Iterable[str], required: Iterable[str] = ()) -> dict[str, Any]:
    """The schema of arguments that are all texts."""
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _field(parameter: Parameter) -> FieldInfo:
    said: dict[str, Any] = {"alias": parameter.alias}
    if parameter.description is not None:
        said["description"] = parameter.description
    if parameter.factory is not None:
        return cast(FieldInfo, Field(default_factory=parameter.factory, **said))
    return cast(FieldInfo, Field(default=... if parameter.required else parameter.default, **said))


def _formless(parameters: Iterable[Parameter]) -> str:
    for parameter in parameters:
        try:
            TypeAdapter(parameter.annotation).json_schema()
        except _SCHEMALESS:
            return f"the parameter {parameter.name!r} has"
    return "a parameter has"


def _root(schema: dict[str, Any]) -> dict[str, Any]:
    """With the root in place: a recursive type comes as a bare `$ref`, where MCP wants `type: object`."""
    schema.pop("title", None)
    reference = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**schema["$defs"][reference], "$defs": schema["$defs"]} if reference else schema


def _is_content(annotation: Any) -> bool:
    """Whether values of this type are contents already: `str`, `str | None`, `Image`, `list[Text | Link]`."""
    if get_origin(annotation) in {Union, UnionType}:
        return all(_is_content(a) for a in get_args(annotation)) or _holds_content(annotation)
    return annotation in _UNSTRUCTURED or _holds_content(annotation)


def _holds_content(annotation: Any) -> bool:
    arguments = get_args(annotation)
    return any(_holds_content(a) for a in arguments) if arguments else annotation in _CONTENT
