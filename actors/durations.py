"""How long a session's requests take, for the metrics, in which nothing stands that a client can choose freely."""

from actors.ports import Telemetry
from actors.protocol import effects as fx
from actors.protocol import events as ev
from actors.protocol import session_record
from actors.protocol.methods import METHODS
from actors.shown import ShownTools

UNKNOWN_TOOL = "-32602"
"""What a call of a tool that does not exist comes to (2025-11-25 server/tools, "Error Handling")."""


class Durations:
    """The requests under way, and when they began."""

    def __init__(self, telemetry: Telemetry, shown: ShownTools) -> None:
        self._telemetry = telemetry
        self._shown = shown
        self._began: dict[int, tuple[float, str, str]] = {}

    def __len__(self) -> int:
        return len(self._began)

    def began(self, effect: fx.Dispatch, now: float) -> None:
        """A request was given to the backends' side."""
        method = effect.method if effect.method in METHODS else ""
        tool = session_record.tool_name(effect.params) if effect.method == "tools/call" else ""
        self._began[effect.call] = (now, method, tool)

    def forget(self, call: int) -> None:
        """It was cancelled."""
        self._began.pop(call, None)

    def ended(self, event: ev.CallEnded, now: float, version: str) -> None:
        """It has its outcome."""
        began = self._began.pop(event.call, None)
        if began is None:
            return
        at, method, tool = began
        error = "" if event.ok else session_record.error_type(event.payload)
        if event.ok and method == "tools/call" and b'"isError":true' in bytes(event.payload):
            error = "tool_error"
        if error == UNKNOWN_TOOL:
            tool = ""  # a name that exists nowhere is the client's invention, and no label
        labels = (method, self._shown.exposed(tool), error, "http", version)
        self._telemetry.observe("mcp_server_operation_duration_seconds", now - at, labels)
