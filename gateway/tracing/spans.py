"""Operations as spans, by OpenTelemetry's semantic conventions for MCP.

No span says what was asked or answered: no arguments, no results, no messages of errors, no URIs, no principal. The
session is named by its handle, and names that a client could invent are left out or called `_OTHER`.
"""

from collections.abc import Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from actors.protocol.instruments import OTHER
from actors.protocol.methods import LISTEN, METHODS
from actors.protocol.modern_tasks import METHODS as TASK_METHODS
from actors.protocol.operations import Operation
from actors.protocol.trace_context import TraceContext

UNKNOWN_METHOD: Final = "_OTHER"
SCOPE: Final = "stagedoor"
KINDS: Final = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "resumption": SpanKind.SERVER}
RESUMPTION: Final = "GET"
"""What a resumption is called, as OpenTelemetry's conventions for HTTP have it: MCP has no method for it."""

WIRES: Final[Mapping[str, tuple[str, str]]] = {
    "http": ("tcp", "http"),
    "sse": ("tcp", "http"),
    "ws": ("tcp", "websocket"),
    "stdio": ("pipe", ""),
}
"""`network.transport` and `network.protocol.name` by transport."""

_NOWHERE: Final = Context()


class Spans:
    """A span for each operation. `version`: of the gateway."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        self._tracer = provider.get_tracer(SCOPE, version)

    def began(self, operation: Operation) -> None:
        """Begins its span, within its parent; whether it is recorded was decided there, or is decided here."""
        if not operation.method and operation.side != "resumption":
            return
        parent = operation.carried.context
        within = _NOWHERE if parent is None else set_span_in_context(NonRecordingSpan(_context(parent)), _NOWHERE)
        links = [Link(_context(link)) for link in (*operation.links, operation.carried.ambient) if link is not None]
        method = _method(operation)
        span = self._tracer.start_span(method, within, KINDS[operation.side], links=links)
        operation.span, context = span, span.get_span_context()
        operation.context = TraceContext(
            f"{context.trace_id:032x}",
            f"{context.span_id:016x}",
            context.trace_flags.sampled,
            context.trace_state.to_header(),
        )

    def ended(self, operation: Operation) -> None:
        """Ends the span of this operation."""
        span: Span | None = operation.span
        operation.span = None
        if span is None:
            return
        if span.is_recording():
            _describe(span, operation)
        span.end()


def _context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), True, flags, state)


def _method(operation: Operation) -> str:
    method = operation.method
    if operation.side == "resumption":
        return RESUMPTION
    return method if method in METHODS or method in TASK_METHODS or method == LISTEN else UNKNOWN_METHOD


def _describe(span: Span, operation: Operation) -> None:
    method = _method(operation)
    transport, protocol = WIRES.get(operation.transport, ("", ""))
    resumes = operation.side == "resumption"
    found: dict[str, str] = {
        "http.request.method" if resumes else "mcp.method.name": method,
        "mcp.protocol.version": operation.version,
        "mcp.session.id": operation.session,
        "jsonrpc.request.id": operation.id,
        "network.transport": transport,
        "network.protocol.name": protocol,
        "stagedoor.endpoint": operation.endpoint,
        "stagedoor.server": operation.backend,
        "stagedoor.outcome": operation.outcome or "",
        "error.type": operation.error,
        "rpc.response.status_code": "" if operation.code is None else str(operation.code),
    }
    if method == "tools/call":
        found["gen_ai.operation.name"] = "execute_tool"
        if operation.tool and operation.tool != OTHER:
            found["gen_ai.tool.name"] = operation.tool
            span.update_name(f"{method} {operation.tool}")
    if resumes:
        for link in operation.links:  # they are known when its stream is found
            span.add_link(_context(link))
    span.set_attributes({name: value for name, value in found.items() if value})
    if operation.error:
        span.set_status(Status(StatusCode.ERROR))
