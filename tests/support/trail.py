"""An audit trail in memory, which takes no line that `actors.protocol.trail` does not declare."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from actors.protocol.trail import RequestLine, undeclared
from gateway.observability.operations import Observing


class Trail:
    """Implements the port `Audit`."""

    on = True

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.full = False

    def record(self, event: str, **values: Any) -> None:
        assert not undeclared(event, values), f"{event} is not declared to say {undeclared(event, values)}"
        self.lines.append(json.loads(json.dumps({"event": event, **values})))

    def record_late(self, event: str, values: Callable[[], RequestLine]) -> None:
        self.record(event, **msgspec.to_builtins(values()))

    record_often = record

    def arguments(self, raw: bytes) -> Any:
        return sorted(json.loads(raw or b"{}"))

    def digest(self, raw: bytes) -> str:
        return f"digest of {len(raw)} bytes"

    async def room(self, within: float) -> bool:
        with trio.move_on_after(within):
            while self.full:
                await trio.sleep(0.1)
        return not self.full

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]


def watched(trail: Trail) -> dict[str, Any]:
    """What opens a gateway with this trail."""
    return {"observer": Observing(clock=trio.current_time, audit=trail), "audit": trail}
