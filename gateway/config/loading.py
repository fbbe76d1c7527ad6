"""Reads a configuration file into settings, or says everything that is wrong with it at once."""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.config.build import Builder, Resolve
from gateway.config.document import Document, read
from gateway.config.expand import expand
from gateway.config.models import File
from gateway.config.problems import ConfigError, Path, Problem, nearest
from gateway.config.settings import Settings

_SENTENCES = {
    "string_type": "must be text (in quotes)",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "missing": "is missing",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}
"""Sentences for the errors whose own text speaks of Python."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and the file as it was written."""

    settings: Settings
    document: Document


def import_object(reference: str) -> Any:
    """The object that `module:attribute` names; modules are found beside the packages that are installed and in the
    current directory. ValueError says what is not there; what the module itself raises is not caught."""
    module, _, attribute = reference.partition(":")
    if not module or not attribute:
        raise ValueError("must be written as module:attribute")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except ImportError as error:
        raise ValueError(f"cannot be imported: {error}") from error
    except AttributeError as error:
        raise ValueError(f'there is no "{attribute}" in {module}') from error
    return found


def load(file: FilePath, environ: Mapping[str, str] | None = None, resolve: Resolve = import_object) -> Loaded:
    """Reads one file. ConfigError holds every problem found, each with its place.

    `resolve` turns a `native` reference into the server object; the environment is the process's own by default.
    """
    document = read(file)
    return Loaded(settings_from(document, os.environ if environ is None else environ, resolve), document)


def settings_from(document: Document, environ: Mapping[str, str], resolve: Resolve = import_object) -> Settings:
    """The settings that a document says. ConfigError as for `load`."""
    data, problems = expand(_without_disabled(document.data), environ)
    try:
        file = File.model_validate(data)
    except ValidationError as error:
        problems += _problems_of(error, {problem.path for problem in problems})
        raise _config_error(document, problems) from error
    builder = Builder(file, document.folder, resolve)
    settings = builder.settings()
    if problems or builder.problems:
        raise _config_error(document, problems + builder.problems)
    return settings


def _without_disabled(data: Mapping[str, Any]) -> dict[str, Any]:
    """The file with nothing but names and groups of the servers that are switched off: what such a server says, and
    the variables it refers to, may be missing or wrong."""
    return {
        **data,
        **{key: _reduced(data[key]) for key in ("mcpServers", "servers") if isinstance(data.get(key), dict)},
    }


def _reduced(servers: dict[str, Any]) -> dict[str, Any]:
    off = {name: one for name, one in servers.items() if isinstance(one, dict) and one.get("disabled") is True}
    return {
        **servers,
        **{name: {"command": "", "disabled": True, "groups": one.get("groups", [])} for name, one in off.items()},
    }


def _config_error(document: Document, problems: list[Problem]) -> ConfigError:
    located = [document.locate(problem) for problem in problems]
    return ConfigError(sorted(located, key=lambda problem: problem.line or 0))


def _problems_of(error: ValidationError, told: set[Path]) -> Iterator[Problem]:
    # include_input off: a wrong value may be a credential, and must not reach a terminal or a log.
    for detail in error.errors(include_url=False, include_input=False):
        path = tuple(detail["loc"])
        if path in told:
            continue
        if detail["type"] == "extra_forbidden":
            yield Problem("unknown key", path, nearest(str(path[-1]), known_keys(path[:-1])))
        else:
            field = detail.get("ctx", {}).get("field")
            yield Problem(_sentence(detail), path if field is None else (*path, field))


def _sentence(detail: ErrorDetails) -> str:
    message = _SENTENCES.get(detail["type"], detail["msg"])
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def known_keys(path: Path) -> list[str]:
    """The keys that a file may have at this place."""
    here: Any = File
    for step in path:
        fields: dict[str, FieldInfo] | None = getattr(here, "model_fields", None)
        if fields is None:
            here = get_args(here)[-1]  # the values of a dict
        else:
            here = next(field.annotation for field in fields.values() if field.alias == step)
        if type(None) in get_args(here):
            here = get_args(here)[0]
    return [field.alias or name for name, field in here.model_fields.items()]
