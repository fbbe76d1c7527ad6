"""The documentation of the configuration, made from the models: the tables of the guide, and a JSON Schema for editors.

`python -m gateway.config` writes both anew; a test asserts that what is in `docs/` is what the models say.
"""

import ast
import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from actors.protocol.table import Limits
from gateway.config.models import (
    BrowserSection,
    Caller,
    File,
    Gateway,
    IntrospectionSection,
    IssuerSection,
    LimitSection,
    Server,
    Token,
    Who,
)
from gateway.config.sections import PLACES, Section

GUIDE = Path("docs/configuration.md")
SCHEMA = Path("docs/config.schema.json")

_MARK = re.compile(r"(<!-- table: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WORDS: dict[Any, str] = {
    str: "text",
    SecretStr: "text",
    bool: "true, false",
    int: "number",
    float: "seconds",
    Any: "anything",
}


def sentences(described: type) -> dict[str, str]:
    """The docstring under each attribute of a class: Python keeps it in the source only."""
    body = ast.parse(textwrap.dedent(inspect.getsource(described))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for declared, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(declared, ast.AnnAssign)
            and isinstance(declared.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[declared.target.id] = inspect.cleandoc(str(after.value.value))
    return found


def describe() -> None:
    """Gives every key its sentence. They are for people and their editors, and take a while to look up: who only reads
    a configuration does without."""
    limits, keys = sentences(Limits), {place.limit: to_camel(place.key) for place in PLACES}
    for place in PLACES:
        section = _model(Gateway.model_fields[place.section].annotation)
        assert section is not None
        sentence = limits[place.limit].replace("\n", " ")
        # The names of other limits as they stand in a file.
        sentence = re.sub(r"`(\w+)`", lambda match: f"`{keys.get(match[1], match[1])}`", sentence)
        section.model_fields[place.key].description = sentence
    within: list[type[Section]] = [Token, IntrospectionSection, IssuerSection, BrowserSection]
    for field in (*Gateway.model_fields.values(), *Server.model_fields.values()):
        within += filter(None, [_model(field.annotation)])
    models: list[type[Section]] = [Who, LimitSection, Caller, *within, Server, Gateway, File]
    for model in models:
        if model.__module__ == File.__module__:
            for name, sentence in sentences(model).items():
                model.model_fields[name].description = sentence
        model.model_rebuild(force=True)


def schema_text() -> str:
    """The JSON Schema of a configuration file, as it is committed."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **File.model_json_schema(by_alias=True)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def tables() -> dict[str, str]:
    """Tables of the guide by name: `server`, `gateway`, one for each section of either (`server-…` where both have one
    of that name), and those of issuers."""
    found = {"server": _table(Server), "gateway": _table(Gateway)}
    found |= {"issuer": _table(IssuerSection), "introspection": _table(IntrospectionSection)}
    found |= {"who": _table(Who), "limit": _table(LimitSection), "as": _table(Caller)}
    found["browser"] = _table(BrowserSection)
    for field in (*Gateway.model_fields.values(), *Server.model_fields.values()):
        model = _model(field.annotation)
        if model is not None:
            name = str(field.alias)
            found[name if name not in found else f"server-{name}"] = _table(model)
    return found


def filled(guide: str) -> str:
    """The guide with each of its tables as the models say it. KeyError for a table that there is not."""
    made = tables()
    return _MARK.sub(lambda match: match[1] + made[match["name"]] + match[3], guide)


def _table(model: type[Section]) -> str:
    rows = [_row(field) for field in model.model_fields.values()]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _row(field: FieldInfo) -> str:
    sentence = (field.description or _doc(field)).replace("\n", " ").replace("|", "\\|")
    return f"| `{field.alias}` | {_value(field)} | {_default(field)} | {sentence} |"


def _doc(field: FieldInfo) -> str:
    model = _model(field.annotation)
    place = (field.alias or "").lower()
    return f"{model.__doc__} See [below](#{place})." if model else ""


def _value(field: FieldInfo) -> str:
    if field.annotation is int and field.alias and field.alias.lower().endswith("bytes"):
        return "bytes"
    if field.alias and field.alias.lower().endswith("sample"):
        return "0 to 1"
    return _word(field.annotation)


def _word(kind: Any) -> str:
    if hasattr(kind, "__metadata__") or type(None) in get_args(kind):
        return _word(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is list:
        return "list of objects" if _model(kind) else "list of text"
    if get_origin(kind) is dict:
        return f"{_word(get_args(kind)[1])} by name"
    return "object" if _model(kind) else _WORDS[kind]


def _default(field: FieldInfo) -> str:
    default = field.default
    if field.is_required():
        return "required"
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if default is None or isinstance(default, BaseModel) or default in ([], {}):
        return "–"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _model(kind: Any) -> type[Section] | None:
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    return next(filter(None, map(_model, get_args(kind))), None)


describe()
