"""Handlers as they are written: plain functions, read once when they are registered.

A handler may take a `Context`, a `Request` and a `Response` beside its arguments: the annotation says so, or for the
last two the names `req, res` or `request, response` without any. An `async` handler runs in the gateway's event loop. A
plain `def` handler runs in a worker thread, so that it may block; it takes no `Context`, whose methods belong to the
event loop. A cancelled call does not wait for its thread: the thread ends by itself and its result is dropped.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin

import trio
import typing_extensions
from msgspec import Struct
from pydantic.fields import FieldInfo

from gateway.native import docstrings
from gateway.native.context import Context
from gateway.native.request import Request, Response

Function: TypeAlias = Callable[..., Any]


class Parameter(Struct, frozen=True):
    """One argument of a handler; `alias` is what clients call it. `default` is `inspect.Parameter.empty` where there is
    none, nor a `factory` that makes one."""

    name: str
    alias: str
    annotation: Any
    default: Any
    factory: Callable[..., Any] | None = None
    description: str | None = None

    @property
    def required(self) -> bool:
        """Whether a call without it fails."""
        return self.default is inspect.Parameter.empty and self.factory is None


class Handler(Struct, frozen=True):
    """A registered function: its parameters without the context, what its docstring says of it, and how to call it."""

    function: Function
    doc: str | None
    parameters: tuple[Parameter, ...]
    returns: Any
    injected: Mapping[str, type]
    is_async: bool

    def takes(self, kind: type) -> bool:
        """Whether it wants a `Context`, a `Request` or a `Response`."""
        return kind in self.injected.values()

    async def __call__(self, request: Request, values: Mapping[str, Any], threads: trio.CapacityLimiter) -> Any:
        """What the function returns, or the response that it wrote instead; what it raises passes through."""
        if not self.injected:
            return await self._run(values, threads)
        response = Response()
        given = {Context: request.context, Request: request, Response: response}
        injected = {name: given[kind] for name, kind in self.injected.items()}
        returned = await self._run({**values, **injected}, threads)
        return response if returned is None and response.written else returned

    async def _run(self, arguments: Mapping[str, Any], threads: trio.CapacityLimiter) -> Any:
        if self.is_async:
            returned = self.function(**arguments)
            return await returned if inspect.isawaitable(returned) else returned
        # In a tuple, since trio refuses to be handed a coroutine, as an async function behind a decorator returns.
        (result,) = await trio.to_thread.run_sync(
            lambda: (self.function(**arguments),), limiter=threads, abandon_on_cancel=True
        )
        return await result if inspect.isawaitable(result) else result


_BUILDERS: Final = ({"req": Request, "res": Response}, {"request": Request, "response": Response})
_INJECTED: Final = (Context, Request, Response)


def read(function: Function) -> Handler:
    """The handler in this function. TypeError if it can't be one."""
    signature, is_async = _signature(function), _is_async(function)
    bare = {p.name for p in signature.parameters.values() if p.annotation is p.empty}
    injected: dict[str, type] = next((dict(pair) for pair in _BUILDERS if pair.keys() <= bare), {})
    for parameter in signature.parameters.values():
        _check(function, parameter)
        if (kind := _bare(parameter.annotation)) in _INJECTED:
            injected[parameter.name] = kind
    if Context in injected.values() and not is_async:
        raise TypeError(f"{_name(function)} takes a Context, so it must be an async function")
    names = [name for name in signature.parameters if name not in injected]
    doc, told = docstrings.split(_doc(function), names)
    parameters = tuple(_parameter(signature.parameters[name], told.get(name)) for name in names)
    return Handler(function, doc or None, parameters, signature.return_annotation, injected, is_async)


def name_of(function: Function, given: str | None) -> str:
    """The name to register under. TypeError where neither is there."""
    name = given or getattr(function, "__name__", None)
    if not name or name == "<lambda>":
        raise TypeError("give a name: the function has none")
    return str(name)


def _signature(function: Function) -> inspect.Signature:
    # Not what is behind a decorator, which may have made a list of it.
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{_name(function)}: a handler returns once, so it can't be a generator")
    try:
        return _resolved(inspect.signature(function, eval_str=True), _globals(function))
    except NameError as error:
        raise TypeError(
            f"{_name(function)}: {error.name!r} in its annotations is not known where the function is defined: import "
            "or define it in the module, and not for type checkers alone"
        ) from error


def _resolved(signature: inspect.Signature, names: dict[str, Any]) -> inspect.Signature:
    """The same, with the names that stand as texts within annotations (`list["Task"]`) resolved too. NameError."""
    given = {p.name: p.annotation for p in signature.parameters.values()} | {"return": signature.return_annotation}
    said = {name: hint for name, hint in given.items() if hint is not None and hint is not signature.empty}
    # `Optional["Task"]` is one object for all modules, and what it was resolved to last is kept there: it is looked for
    # anew only where there are local names too.
    hints = typing_extensions.get_type_hints(SimpleNamespace(__annotations__=said), names, {}, include_extras=True)
    parameters = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", given["return"]))


def _globals(function: Any) -> dict[str, Any]:
    """The names where the function is defined."""
    if isinstance(function, partial):
        return _globals(function.func)
    called = function if inspect.isroutine(function) else type(function).__call__
    names: dict[str, Any] = getattr(inspect.unwrap(called), "__globals__", {})
    return names


def _check(function: Function, parameter: inspect.Parameter) -> None:
    """TypeError for what no client could give."""
    what = f"{_name(function)}: the parameter {parameter.name!r} is"
    match parameter.kind:
        case parameter.POSITIONAL_ONLY:
            raise TypeError(f"{what} positional only, and arguments come by name")
        case parameter.VAR_POSITIONAL | parameter.VAR_KEYWORD:
            stars = "*args" if parameter.kind is parameter.VAR_POSITIONAL else "**kwargs"
            raise TypeError(f"{what} {stars}, and each argument needs a name of its own")
        case _:
            pass
    if parameter.name == "self" and parameter.annotation is parameter.empty:
        raise TypeError(f"{what} of a class: give the method of an object, `server.tool(object.method)`")


def _parameter(given: inspect.Parameter, told: str | None) -> Parameter:
    annotation = Any if given.annotation is given.empty else given.annotation
    default, factory = given.default, None
    if isinstance(default, FieldInfo):
        annotation, default = Annotated[annotation, default], given.empty
    fields = [said for said in getattr(annotation, "__metadata__", ()) if isinstance(said, FieldInfo)]
    for field in fields if default is given.empty else ():
        if not field.is_required():
            default, factory = (given.empty, field.default_factory) if field.default_factory else (field.default, None)
    aliases = [said for field in fields for said in (field.validation_alias, field.alias) if isinstance(said, str)]
    described = any(field.description is not None for field in fields)
    return Parameter(
        given.name,
        aliases[0] if aliases else given.name,
        annotation,
        default,
        factory,
        None if described else told,
    )


def _bare(annotation: Any) -> Any:
    """Without what `Annotated` adds, and without None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        options = [option for option in get_args(annotation) if option is not NoneType]
        return _bare(options[0]) if len(options) == 1 else annotation
    return annotation


def _inner(function: Function) -> Function:
    """What is behind partials and decorators."""
    while isinstance(function, partial):
        function = function.func
    unwrapped: Function = inspect.unwrap(function)
    return unwrapped


def is_plain(function: Function) -> bool:
    """Whether it is surely a function that is not async: what else can be called may return something to wait for."""
    inner = _inner(function)
    return (inspect.isfunction(inner) or inspect.ismethod(inner)) and not inspect.iscoroutinefunction(inner)


def _is_async(function: Function) -> bool:
    inner = _inner(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(type(inner), "__call__", None))  # noqa: B004


def _doc(function: Function) -> str:
    return inspect.getdoc(_inner(function)) or ""


def _name(function: Function) -> str:
    return getattr(_inner(function), "__qualname__", repr(function))
