"""How long calls take, for the metrics: those of clients at the gateway, and those of the gateway at a server.

Nothing stands in them that a client can choose freely. The names of tools are those that a list of a server has shown:
any other is an invention, and enough of these would leave no room for the real ones.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw, Struct, field

from actors.machines.session import events as ev
from actors.ports import Telemetry
from actors.protocol import errors
from actors.protocol.errors import BROKEN
from actors.protocol.instruments import OTHER
from actors.protocol.messages import EMPTY
from actors.protocol.methods import METHODS
from actors.protocol.naming import build_names
from actors.protocol.operations import Operation, Outcome
from actors.protocol.outcomes import code_of
from actors.protocol.table import Table
from actors.protocol.trace_context import trace_id
from actors.runtime import EMPTY_TABLE, put

if TYPE_CHECKING:
    from actors.services import TableCell

SHOWN_MAX: Final = 200
"""Names of one server that become labels, the first ones that it has shown."""
REMEMBERED: Final = 256 * 1024
"""Bytes of the last list of a server that is kept, so that the same one is not read again; a larger one is read."""


class _Tool(Struct):
    name: str = ""


class _Page(Struct):
    tools: list[_Tool] = []


_decode = msgspec.json.Decoder(_Page).decode


class ShownTools:
    """The names that tools have at their servers, and on the endpoints that merge servers."""

    def __init__(self, table: TableCell) -> None:
        self._table = table
        self._of: dict[str, dict[str, None]] = {}
        self._last: dict[str, bytes] = {}
        self._exposed: frozenset[str] = frozenset()
        self._exposed_by: Table | None = None

    def learn(self, server: str, page: Raw) -> None:
        """A page of a server's list of tools."""
        if page == self._last.get(server):
            return
        known = self._of.setdefault(server, {})
        try:
            tools: Sequence[_Tool] = _decode(page).tools
        except BROKEN:
            return
        self._last[server] = bytes(page) if len(page) <= REMEMBERED else b""
        for tool in tools:
            if tool.name not in known and len(known) < SHOWN_MAX:
                known[tool.name] = None
                self._exposed_by = None

    def of(self, server: str, name: str) -> str:
        """The label of a tool that is called at this server."""
        return name if not name or name in self._of.get(server, ()) else OTHER

    def exposed(self, name: str) -> str:
        """The label of a tool that is called at the gateway, by whichever of its names."""
        if not name:
            return name
        table = self._table.value
        if self._exposed_by is not table:
            self._make(table)
        return name if name in self._exposed else OTHER

    def _make(self, table: Table) -> None:
        shown = {server: names for server, names in self._of.items() if server in table.backends}
        own = {name for names in shown.values() for name in names}
        merged = build_names(shown.items(), table.separator, table.backends).owners
        self._exposed, self._exposed_by = frozenset(own.union(merged)), table


# Times ----------------------------------------------------------------------------------------------------------

UNKNOWN_TOOL = "-32602"
"""What a call of a tool that does not exist comes to (2025-11-25 server/tools, "Error Handling")."""


class _Called(Struct):
    name: str = ""
    meta: Raw = field(default=EMPTY, name="_meta")


class _Meta(Struct):
    traceparent: str = ""


class _Code(Struct):
    code: int


_decode_called = msgspec.json.Decoder(_Called).decode
_decode_meta = msgspec.json.Decoder(_Meta).decode


def what_is_called(params: Raw) -> tuple[str, str]:
    """The name that a request's params have, and the trace that its sender says it belongs to: each empty, if there is
    none."""
    try:
        called = _decode_called(params)
    except BROKEN:
        return "", ""
    if not called.meta:
        return called.name, ""
    try:
        parent = _decode_meta(called.meta).traceparent
        return called.name, trace_id(parent) if parent else ""
    except BROKEN:
        return called.name, ""


def error_type(error: Raw) -> str:
    """The code of a JSON-RPC error, if it is one that somebody has given a meaning."""
    try:
        code = msgspec.json.decode(error, type=_Code).code
        return str(code) if code in errors.CODES else "other"
    except BROKEN:
        return "malformed"


ENDS = 4096
"""Bytes at either end of a result in which its own members are looked for."""
_IS_ERROR = b'"isError":true'


def _says_error(result: Raw) -> bool:
    """Whether a tool said that it failed. A large result is content with its few other members before or after it, and
    to search a megabyte would cost as much as to carry it."""
    if len(result) > 2 * ENDS:
        data = memoryview(result)
        return bytes(data[:ENDS]).find(_IS_ERROR) >= 0 or bytes(data[-ENDS:]).find(_IS_ERROR) >= 0
    return bytes(result).find(_IS_ERROR) >= 0  # `in` tries the bytes as a number first


def tool_name(params: Raw) -> str:
    """The tool that a call names."""
    return what_is_called(params)[0]


class CallTimes:
    """The calls under way by their keys: when each began, its method (empty: none that is known), its tool and its
    trace; and what observes them, where somebody does."""

    __slots__ = ("operations", "running", "shown", "telemetry")

    def __init__(self, telemetry: Telemetry, shown: ShownTools) -> None:
        self.telemetry = telemetry
        self.shown = shown
        self.running: dict[Hashable, tuple[float, str, str, str]] = EMPTY_TABLE
        self.operations: dict[Hashable, Operation] = EMPTY_TABLE

    def __len__(self) -> int:
        return len(self.running)

    def began(self, key: Hashable, method: str, params: Raw, now: float) -> None:
        """Notes when a call came."""
        name, trace = what_is_called(params) if params else ("", "")
        tool = name if method == "tools/call" else ""
        self.running = put(self.running, key, (now, method if method in METHODS else "", tool, trace))

    def observe(self, key: Hashable, operation: Operation) -> None:
        """Somebody observes this call."""
        operation.taken = True
        self.operations = put(self.operations, key, operation)

    def forget(self, key: Hashable, error: errors.ProtocolError | None = None) -> None:
        """Nobody waits for it any more; `error`: what is said instead of an outcome."""
        self._over(key)
        if self.operations and (operation := self.observed(key)) is not None:
            operation.given_up(error)

    def observed(self, key: Hashable) -> Operation | None:
        """What observes this call, which is over."""
        operation = self.operations.pop(key, None)
        self.operations = self.operations or EMPTY_TABLE
        return operation

    def left(self, outcome: Outcome, keys: Collection[Hashable] | None = None) -> None:
        """Nobody here hears of these calls any more; None: of any."""
        for key in list(self.operations if keys is None else keys):
            if (operation := self.observed(key)) is not None:
                operation.ended(outcome, "" if outcome == "handed_over" else outcome)

    def _over(self, key: Hashable) -> tuple[float, str, str, str] | None:
        """It is not under way any more."""
        began = self.running.pop(key, None)
        self.running = self.running or EMPTY_TABLE
        return began


class Durations(CallTimes):
    """Measures the requests of clients."""

    __slots__ = ()

    def ended(self, event: ev.CallEnded, now: float, version: str) -> None:
        """Measures a call that has its outcome."""
        began = self._over(event.call)
        if began is None:
            return
        at, method, tool, trace = began
        error = "" if event.ok else error_type(event.payload)
        if event.ok and method == "tools/call" and _says_error(event.payload):
            error = "tool_error"
        if error == UNKNOWN_TOOL:
            tool = ""  # a name that exists nowhere is the client's invention, and no label
        labels = (method, self.shown.exposed(tool), error, "http", version)
        operation = self.observed(event.call) if self.operations else None
        if operation is not None:
            trace = operation.recorded_trace
        self.telemetry.observe("mcp_server_operation_duration_seconds", now - at, labels, trace)
        if operation is not None:
            operation.tool, operation.version = labels[1], version
            operation.ended("answered", error, code_of(event.payload) if not event.ok else None)


class BackendDurations(CallTimes):
    """Measures the calls at one backend."""

    __slots__ = ()

    def ended(
        self, key: Hashable, ok: bool, payload: Raw, now: float, *, backend: str, transport: str, version: str
    ) -> None:
        """Measures a call at the backend that has its outcome."""
        began = self._over(key)
        if began is None:
            return
        at, method, tool, trace = began
        if ok and method == "tools/list":
            self.shown.learn(backend, payload)
        labels = (
            method,
            self.shown.of(backend, tool),
            "" if ok else error_type(payload),
            transport,
            version,
            backend,
        )
        operation = self.observed(key) if self.operations else None
        if operation is not None:
            trace = operation.recorded_trace
        self.telemetry.observe("mcp_client_operation_duration_seconds", now - at, labels, trace)
        if operation is not None:
            operation.tool, operation.transport, operation.version = labels[1], transport, version
            error = "tool_error" if ok and method == "tools/call" and _says_error(payload) else labels[2]
            operation.ended("answered", error, code_of(payload) if not ok else None)
