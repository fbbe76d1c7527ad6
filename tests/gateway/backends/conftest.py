"""What the tests of transports share: a recorder of events and of log lines."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import trio

from actors.ports import TransportEvent


class Events:
    """An `emit` that keeps what it gets, and lets a test wait for it."""

    def __init__(self) -> None:
        self.all: list[TransportEvent] = []
        self._send, self._receive = trio.open_memory_channel[TransportEvent](math.inf)

    def __call__(self, event: TransportEvent) -> None:
        self.all.append(event)
        self._send.send_nowait(event)

    async def next(self, kind: type | None = None) -> Any:
        """The next event, or the next of this kind (others are passed over)."""
        while True:
            event = await self._receive.receive()
            if kind is None or isinstance(event, kind):
                return event

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.all if isinstance(event, kind)]


class RecordedLog:
    """A `Log` that keeps (level, event, values)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def _level(self, level: str) -> Callable[..., None]:
        def write(event: str, **values: Any) -> None:
            self.lines.append((level, event, values))

        return write

    def __getattr__(self, level: str) -> Callable[..., None]:
        return self._level(level)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [values for _, name, values in self.lines if name == event]


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()
