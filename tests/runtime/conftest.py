"""A system that ends with the test, and actors that write down what happens to them."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from actors.runtime import Actor, Exit, System, open_system


class Recorder(Actor):
    """Keeps what it receives; does what it is told by a message that can be called."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.reasons: list[Exit] = []

    def started(self) -> None:
        self.seen.append("started")

    def receive(self, message: Any) -> None:
        if callable(message):
            message(self)
        else:
            self.seen.append(message)

    def stopped(self, reason: Exit) -> None:
        self.reasons.append(reason)

    @property
    def messages(self) -> list[Any]:
        return self.seen[1:]


def crash(_: object) -> None:
    """A message on which a Recorder crashes."""
    raise ZeroDivisionError("told to")


@pytest.fixture
def recorder() -> Callable[[], Recorder]:
    return Recorder


@pytest.fixture
def crash_message() -> Callable[[object], None]:
    return crash


@pytest.fixture
def crashes() -> list[tuple[str, BaseException]]:
    """What the system's crash callback was told."""
    return []


@pytest.fixture
async def system(crashes: list[tuple[str, BaseException]]) -> AsyncIterator[System]:
    async with open_system(on_crash=lambda name, error: crashes.append((name, error))) as system:
        yield system


@contextmanager
def stall(system: System) -> Iterator[None]:
    """No actor gets a turn inside, as if the dispatcher were overloaded."""
    held: list[Any] = []
    schedule = system.dispatcher.schedule
    system.dispatcher.schedule = held.append  # type: ignore[method-assign, assignment]
    yield
    system.dispatcher.schedule = schedule  # type: ignore[method-assign]
    for runnable in held:
        schedule(runnable)


@pytest.fixture
def stalled() -> Callable[[System], AbstractContextManager[None]]:
    return stall
