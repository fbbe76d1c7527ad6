"""`typing.TypedDict` on Python 3.11, which pydantic refuses: each is read by way of an equal
`typing_extensions.TypedDict`."""

import dataclasses
import sys
import typing
from typing import Any, Final

import typing_extensions

_LEGIBLE: Final = sys.version_info >= (3, 12)


def make_legible(annotation: Any) -> None:
    """Tells pydantic how to read every `typing.TypedDict` in this annotation, in what its type arguments, its fields
    and theirs are made of."""
    if not _LEGIBLE:
        _teach(annotation, set())


def _teach(annotation: Any, seen: set[int]) -> None:
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    for argument in typing.get_args(annotation):
        _teach(argument, seen)
    if not isinstance(annotation, type):
        return
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        _teach_class(annotation)
    if typing.is_typeddict(annotation) or dataclasses.is_dataclass(annotation):
        for field in _hints(annotation).values():
            _teach(field, seen)


def _teach_class(typed_dict: Any) -> None:
    if "__get_pydantic_core_schema__" in vars(typed_dict):
        return
    same = _same(typed_dict)

    def schema(_: Any, handler: Any) -> Any:
        return handler.generate_schema(same)

    typed_dict.__get_pydantic_core_schema__ = schema


def _same(typed_dict: Any) -> Any:
    fields = {}
    for name, hint in typing_extensions.get_type_hints(typed_dict, include_extras=True).items():
        # What the annotation says goes before the keys: Python leaves it out of them where annotations are texts.
        need = typing_extensions.Required if name in typed_dict.__required_keys__ else typing_extensions.NotRequired
        fields[name] = hint if _qualified(hint) else need[hint]
    functional: Any = typing_extensions.TypedDict
    made = functional(typed_dict.__name__, fields)
    made.__doc__, made.__module__ = typed_dict.__doc__, typed_dict.__module__
    return made


def _qualified(hint: Any) -> bool:
    """Whether it says itself if the key must be there."""
    origin = typing.get_origin(hint)
    if origin in {typing.Annotated, typing_extensions.ReadOnly}:
        return _qualified(typing.get_args(hint)[0])
    return origin in {typing.Required, typing.NotRequired}


def _hints(annotated: Any) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(annotated, include_extras=True)
    except NameError:  # a name that only pydantic finds, or says that it does not
        return {}
