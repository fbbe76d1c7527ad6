"""The calls that a link has in hand, and what is measured when they end."""

from typing import NamedTuple

from msgspec import Raw

from actors.links.link_messages import Call
from actors.ports import Telemetry
from actors.protocol.link_events import CallKey
from actors.protocol.methods import METHODS
from actors.protocol.session_record import error_type, tool_name
from actors.runtime import Ref
from actors.shown import ShownTools


class _Running(NamedTuple):
    at: float
    method: str
    tool: str


class CallTimes:
    """From the moment that a call came to its outcome."""

    def __init__(self, backend: str, telemetry: Telemetry, shown: ShownTools) -> None:
        self._backend = backend
        self._telemetry = telemetry
        self._shown = shown
        self._running: dict[CallKey, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def began(self, key: CallKey, call: Call, now: float) -> None:
        """A call came."""
        tool = tool_name(call.params) if call.method == "tools/call" else ""
        self._running[key] = _Running(now, call.method if call.method in METHODS else "", tool)

    def forget(self, key: CallKey) -> None:
        """Nobody waits for it any more."""
        self._running.pop(key, None)

    def of(self, caller: Ref) -> list[CallKey]:
        """The calls of one caller."""
        return [key for key in self._running if isinstance(key, tuple) and key[0] is caller]

    def ended(self, key: CallKey, ok: bool, payload: Raw, now: float, transport: str, version: str) -> None:
        """The outcome of a call."""
        running = self._running.pop(key, None)
        if running is None:
            return
        error = "" if ok else error_type(payload)
        if ok and running.method == "tools/list":
            self._shown.learn(self._backend, payload)
        tool = self._shown.of(self._backend, running.tool)
        labels = (running.method, tool, error, transport, version, self._backend)
        self._telemetry.observe("mcp_client_operation_duration_seconds", now - running.at, labels)
