"""Elicitation forms: flat objects of simple fields, from a pydantic model, a dataclass, a TypedDict or a schema.

What a form may hold is fixed by the protocol (2025-11-25, client/elicitation, "Requested Schema"); a model that needs
more is refused before anything is sent.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from actors.protocol.versions import can_use
from gateway.native.errors import ToolError, explain
from gateway.native.typed_dicts import make_legible
from gateway.native.validation import JsonSchema

T = TypeVar("T")
Action: TypeAlias = Literal["accept", "decline", "cancel"]

_COMMON: Final = {"type", "title", "description", "default"}
_KEPT: Final[Mapping[str, set[str]]] = {
    "string": _COMMON | {"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"},
    "number": _COMMON | {"minimum", "maximum"},
    "integer": _COMMON | {"minimum", "maximum"},
    "boolean": _COMMON,
    "array": _COMMON | {"minItems", "maxItems", "items"},
}
"""Type of a field → what may be said of it. Other keywords are left out: the answer is checked here against all."""

_FORMATS: Final = {"email", "uri", "date", "date-time"}


class Form(Generic[T]):
    """A form to fill in, and how to read it."""

    def __init__(self, shape: type[T] | Mapping[str, Any]) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        if isinstance(shape, Mapping):
            self._schema = dict(shape)
            self._by_hand = JsonSchema(shape, "the form")
        else:
            make_legible(shape)
            self._adapter = TypeAdapter(shape)
            self._schema = self._adapter.json_schema()

    def schema(self, version: str) -> dict[str, Any]:
        """As it goes to a client of this revision. TypeError if it is no form, or none for that revision; ValueError if
        it is no schema."""
        definitions = self._schema.get("$defs", {})
        if self._schema.get("type") != "object":
            raise TypeError("a form is a flat object: give a model with simple fields")
        if self._adapter is None:
            self._by_hand.require()
        required = list(self._schema.get("required", ()))
        fields = {name: _field(name, f, definitions) for name, f in self._schema.get("properties", {}).items()}
        if not can_use(version, "rich_enums"):
            fields = {name: _older(name, f) for name, f in fields.items()}
        return {"type": "object", "properties": fields, **({"required": required} if required else {})}

    def read(self, content: Any) -> T:
        """The answer as the shape asked for. ToolError if it does not fit."""
        if not isinstance(content, dict):
            raise ToolError("The client accepted the form and sent no content")
        if self._adapter is None:
            if fault := self._by_hand.fault(content):
                raise ToolError(f"The answer does not fit the form: {fault}")
            return content  # type: ignore[return-value]  # T is the plain dict here
        try:
            filled: T = self._adapter.validate_python(content)
        except ValidationError as error:
            raise ToolError(f"The answer does not fit the form: {explain(error)}") from None
        return filled


def _field(name: str, field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    flat = _flat(field, definitions)
    kind = str(flat.get("type"))
    if "const" in flat:
        flat["enum"] = [flat["const"]]
    if kind not in _KEPT or (kind == "array" and not _choices(flat, definitions)):
        raise TypeError(f"the field {name!r} is not one that a form can have: text, number, boolean, or a choice")
    if flat.get("format") not in _FORMATS:
        flat.pop("format", None)
    if flat.get("default", 0) is None:
        del flat["default"]
    return {k: v for k, v in flat.items() if k in _KEPT[kind]}


def _flat(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """References resolved, and `X | None` read as an X that may be left out."""
    flat = dict(field)
    if "$ref" in flat:
        flat = {**definitions[flat.pop("$ref").removeprefix("#/$defs/")], **flat}
    options = [o for o in flat.get("anyOf", ()) if o.get("type") != "null"]
    if len(options) == 1:
        del flat["anyOf"]
        flat = {**_flat(options[0], definitions), **flat}
    return flat


def _choices(flat: dict[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Whether the array is a multiple choice; its items are put in wire form."""
    items = _flat(flat.get("items", {}), definitions)
    items = {k: items[k] for k in ("type", "enum", "anyOf") if k in items}
    flat["items"] = items
    return "enum" in items or "anyOf" in items


def _older(name: str, field: dict[str, Any]) -> dict[str, Any]:
    """As 2025-06-18 has it: no multiple choice, `enumNames` for titled choices, defaults on booleans alone."""
    if field["type"] == "array":
        raise TypeError(f"the field {name!r} is a multiple choice, which this client does not know")
    older = dict(field)
    if "oneOf" in older:
        options = older.pop("oneOf")
        older |= {"enum": [o["const"] for o in options], "enumNames": [o.get("title", o["const"]) for o in options]}
    if older["type"] != "boolean":
        older.pop("default", None)
    return older
