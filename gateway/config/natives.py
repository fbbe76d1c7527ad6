"""Servers in this process that are made of options: functions whose parameters the options are."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from gateway.config.problems import ConfigError, Problem, nearest, sentence
from gateway.config.references import is_server


def made(found: Any, options: Mapping[str, Any], place: Callable[[FilePath], FilePath]) -> Any:
    """The server that was found, or that the function that was found makes of these options. `place` says where a
    path among them leads. ConfigError says what is wrong with the options, by their places in the server's section."""
    if not is_server(found) and not callable(found):
        kind = type(found).__name__
        raise ConfigError([Problem(f"is no server, nor a function that makes one: it is of type {kind}", ("native",))])
    if is_server(found):
        if options:
            raise ConfigError([Problem("this server has no options", ("options",))])
        return found
    model = _model(found)
    try:
        checked = model.model_validate(dict(options))
    except ValidationError as error:
        raise ConfigError(_problems(error, model)) from None
    values = {str(field.alias): getattr(checked, name) for name, field in model.model_fields.items()}
    try:
        server = found(**{name: place(v) if isinstance(v, FilePath) else v for name, v in values.items()})
    except ValueError as error:
        raise ConfigError([Problem(str(error), ("options",))]) from error
    except SystemExit as error:
        raise ConfigError([Problem(f"it ends the process (SystemExit: {error})", ("native",))]) from error
    if not is_server(server):
        raise ConfigError([Problem(f"it makes no server, but something of type {type(server).__name__}", ("native",))])
    return server


def _model(factory: Callable[..., Any]) -> type[BaseModel]:
    if inspect.iscoroutinefunction(factory):
        raise ConfigError([Problem("a function that makes a server is not async", ("native",))])
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters.values()
    except (TypeError, ValueError, NameError):
        raise ConfigError([Problem("is no server, nor a function that makes one", ("native",))]) from None
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
            default = ... if parameter.default is parameter.empty else parameter.default
            # By alias, since a parameter may be called what a field may not: `schema`, `copy`.
            fields[f"p{number}"] = (annotation, Field(default, alias=parameter.name))
    try:
        return create_model("Options", __config__=ConfigDict(extra="forbid"), **fields)
    except PydanticSchemaGenerationError:
        problem = "is no server, and a function with parameters that no option can be"
        raise ConfigError([Problem(problem, ("native",))]) from None


def _problems(error: ValidationError, model: type[BaseModel]) -> Iterator[Problem]:
    known = [str(field.alias) for field in model.model_fields.values()]
    # include_input off: a wrong value may be a credential, and must not reach a terminal or a log.
    for detail in error.errors(include_url=False, include_input=False):
        path = ("options", *detail["loc"])
        if detail["type"] == "extra_forbidden":
            yield Problem("unknown option", path, nearest(str(path[-1]), known))
        else:
            yield Problem(sentence(detail["type"], detail["msg"]), path)
