"""Handlers as they are written: plain functions, read once when they are registered.

A handler may take a `Context`, a `Request` and a `Response` beside its arguments: the annotation says so, or for the
last two the names `req, res` or `request, response` without any. An `async` handler runs in the gateway's event loop. A
plain `def` handler runs in a worker thread, so that it may block; it takes no `Context`, whose methods belong to the
event loop. A cancelled call does not wait for its thread: the thread ends by itself and its result is dropped.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import trio

from gateway.native.context import Context
from gateway.native.definitions import Description
from gateway.native.request import Request, Response

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a handler. `default` is `inspect.Parameter.empty` where there is none."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether a call without it fails."""
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function: its parameters without the context, and how to call it."""

    function: Function
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
            return await self.function(**arguments)
        # In a tuple, since trio refuses to be handed a coroutine, as an async function behind a decorator returns.
        (result,) = await trio.to_thread.run_sync(
            lambda: (self.function(**arguments),), limiter=threads, abandon_on_cancel=True
        )
        return await result if inspect.isawaitable(result) else result


_BUILDERS: Final = ({"req": Request, "res": Response}, {"request": Request, "response": Response})


def read(function: Function) -> Handler:
    """The handler in this function. TypeError if it can't be one."""
    signature = inspect.signature(function, eval_str=True)
    bare = {p.name for p in signature.parameters.values() if p.annotation is p.empty}
    injected: dict[str, type] = next((dict(pair) for pair in _BUILDERS if pair.keys() <= bare), {})
    named = []
    for parameter in signature.parameters.values():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise TypeError(f"{_name(function)}: every parameter needs a name, *args and **kwargs have none")
        if parameter.annotation in (Context, Request, Response):
            injected[parameter.name] = parameter.annotation
        elif parameter.name not in injected:
            named.append(Parameter(parameter.name, _annotation(parameter.annotation), parameter.default))
    is_async = inspect.iscoroutinefunction(function)
    if Context in injected.values() and not is_async:
        raise TypeError(f"{_name(function)} takes a Context, so it must be an async function")
    return Handler(function, tuple(named), signature.return_annotation, injected, is_async)


def name_of(function: Function, given: str | None) -> str:
    """The name to register under. TypeError where neither is there."""
    name = given or getattr(function, "__name__", None)
    if not name or name == "<lambda>":
        raise TypeError("give a name: the function has none")
    return str(name)


def description_of(function: Function, given: Description) -> Description:
    """The given description, or the docstring."""
    return given or inspect.getdoc(function)


def _annotation(annotation: Any) -> Any:
    return Any if annotation is inspect.Parameter.empty else annotation


def _name(function: Function) -> str:
    return getattr(function, "__qualname__", repr(function))
