"""How long calls take, for the metrics, in which nothing stands that a client can choose freely: those of clients at
the gateway, and those of the gateway at a server."""

from collections.abc import Hashable

import msgspec
from msgspec import Raw

from actors.ports import Telemetry
from actors.protocol import errors
from actors.protocol import events as ev
from actors.protocol.methods import METHODS
from actors.shown import ShownTools

UNKNOWN_TOOL = "-32602"
"""What a call of a tool that does not exist comes to (2025-11-25 server/tools, "Error Handling")."""


class _Name(msgspec.Struct):
    name: str


class _Code(msgspec.Struct):
    code: int


def tool_name(params: Raw) -> str:
    """The tool that a call names."""
    try:
        return msgspec.json.decode(params, type=_Name).name
    except (msgspec.DecodeError, RecursionError):
        return ""


def error_type(error: Raw) -> str:
    """The code of a JSON-RPC error, if it is one that somebody has given a meaning."""
    try:
        code = msgspec.json.decode(error, type=_Code).code
        return str(code) if code in errors.CODES else "other"
    except (msgspec.DecodeError, RecursionError):
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


class CallTimes:
    """The calls under way by their keys: when each began, its method (empty: none that is known) and its tool."""

    def __init__(self, telemetry: Telemetry, shown: ShownTools) -> None:
        self.telemetry = telemetry
        self.shown = shown
        self.running: dict[Hashable, tuple[float, str, str]] = {}

    def __len__(self) -> int:
        return len(self.running)

    def began(self, key: Hashable, method: str, params: Raw, now: float) -> None:
        """A call came."""
        tool = tool_name(params) if method == "tools/call" else ""
        self.running[key] = (now, method if method in METHODS else "", tool)

    def forget(self, key: Hashable) -> None:
        """Nobody waits for it any more."""
        self.running.pop(key, None)


class Durations(CallTimes):
    """Of requests of clients."""

    def ended(self, event: ev.CallEnded, now: float, version: str) -> None:
        """It has its outcome."""
        began = self.running.pop(event.call, None)
        if began is None:
            return
        at, method, tool = began
        error = "" if event.ok else error_type(event.payload)
        if event.ok and method == "tools/call" and _says_error(event.payload):
            error = "tool_error"
        if error == UNKNOWN_TOOL:
            tool = ""  # a name that exists nowhere is the client's invention, and no label
        labels = (method, self.shown.exposed(tool), error, "http", version)
        self.telemetry.observe("mcp_server_operation_duration_seconds", now - at, labels)


class BackendDurations(CallTimes):
    """Of calls at one backend."""

    def ended(
        self, key: Hashable, ok: bool, payload: Raw, now: float, *, backend: str, transport: str, version: str
    ) -> None:
        """The outcome of a call."""
        began = self.running.pop(key, None)
        if began is None:
            return
        at, method, tool = began
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
        self.telemetry.observe("mcp_client_operation_duration_seconds", now - at, labels)
