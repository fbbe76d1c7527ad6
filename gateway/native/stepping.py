"""How long a handler keeps the event loop to itself: the time between two of its awaits, in which nobody else runs."""

from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")

SLOW: Final = 0.25
"""Seconds of one step from which on it is told; from there on the loop counts as slow, too."""


class Stepped(Generic[T]):
    """To be awaited in the place of the coroutine. `blocked` hears of each step that took too long; it must not
    raise."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], blocked: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._blocked = blocked

    def __await__(self) -> Generator[Any, Any, T]:
        return cast(Generator[Any, Any, T], self)  # whoever awaits it needs no more of one

    def __iter__(self) -> "Stepped[T]":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """The next step."""
        began = perf_counter()
        try:
            return self._coroutine.send(value)
        finally:
            del value  # in which trio may have an exception, which would hold this frame, which would hold it
            self._took(perf_counter() - began)

    def throw(self, *error: Any) -> Any:
        """The next step, which begins with an exception."""
        began = perf_counter()
        try:
            return self._coroutine.throw(*error)
        finally:
            del error  # as above
            self._took(perf_counter() - began)

    def close(self) -> None:
        """There is no next step."""
        self._coroutine.close()

    def _took(self, seconds: float) -> None:
        if seconds > SLOW:
            self._blocked(seconds)
