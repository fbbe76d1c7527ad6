"""JSON Schemas (2020-12) written by hand, and values checked against them.

A schema may be a function: it is asked each time when it is needed, and compiled again only when it has changed.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import isfinite
from typing import Any, TypeAlias

from gateway.native.errors import SHOWN, WHAT_MAX, cut, named

Schema: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


class JsonSchema:
    """A schema, compiled when it is first needed."""

    def __init__(self, schema: Schema, name: str) -> None:
        self._given = schema
        self._name = name
        self._compiled: dict[str, Any] | None = None
        self._validator: Any = None

    def require(self) -> None:
        """ValueError if it is no schema; a function is not asked yet."""
        if not callable(self._given):
            self._compile()

    @property
    def value(self) -> dict[str, Any]:
        """The schema as it is now, with an object at its root. ValueError, and whatever the function raises."""
        return _rooted(self._given() if callable(self._given) else self._given, self._name)

    @property
    def listed(self) -> dict[str, Any]:
        """The same, and ValueError if a function gave what is no schema."""
        if callable(self._given):
            self._compile()
            return dict(self._compiled or {})
        return self.value

    def fault(self, value: Any, every: bool = False) -> str | None:
        """What is wrong with the value, in a line: `days: "x" is not of type "integer"`; None if it fits. Only for
        short values `every` fault should be looked for. ValueError, and whatever the function raises."""
        validator = self._compile()
        if validator.is_valid(value):
            return None
        if not every:
            return _first(validator, value)
        faults = list(validator.iter_errors(value))
        return named((_line(fault, value) for fault in faults), len(faults))

    def _compile(self) -> Any:
        if self._validator is not None and not callable(self._given):
            return self._validator
        schema = self.value
        if schema != self._compiled:
            # Here, so that a server whose schemas all come from signatures does not load it.
            import jsonschema_rs

            try:
                self._validator = jsonschema_rs.validator_for(schema, offline=True)
            except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
                raise ValueError(f"{self._name}: not a JSON Schema: {_line(error)}") from None
            self._compiled = schema
        return self._validator


def _rooted(schema: Any, name: str) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise ValueError(f"{name}: a schema is a mapping, and this is {type(schema).__name__}")  # noqa: TRY004
    if schema.get("type", "object") != "object":
        raise ValueError(f"{name}: the root of a schema is an object, and this is {schema['type']!r}")
    return {"type": "object", **schema}


def _first(validator: Any, value: Any) -> str:
    import jsonschema_rs

    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as fault:
        return _line(fault, value)
    raise AssertionError("a value that does not fit has a fault")


def _line(fault: Any, value: Any = None) -> str:
    place = getattr(fault, "instance_path", ())
    message = str(getattr(fault, "message", fault))
    if value is not None and _is_infinite(value, place):  # to the validator it is a null, which nobody sent
        message = "Input should be a finite number"
    return f"{_where(place)}: {_short(message)}" if place else _short(message)


def _is_infinite(value: Any, place: Iterable[str | int]) -> bool:
    """Whether it is no finite number that stands there in the value."""
    for part in place:
        try:
            value = value[str(part) if isinstance(value, dict) else part]
        except LookupError:  # the validator takes a name of digits for a number: "007" is lost
            return False
    return isinstance(value, float) and not isfinite(value)


def _where(place: Iterable[str | int]) -> str:
    return cut(".".join(str(part) for part in islice(place, SHOWN * SHOWN)))


def _short(message: str) -> str:
    """The end too, which says what is wrong: at its beginning stands the value."""
    if len(message) <= WHAT_MAX:
        return message
    return f"{message[: WHAT_MAX // 2]}...{message[-WHAT_MAX // 2 :]}"
