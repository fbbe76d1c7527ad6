"""What observers see, for tests: spans in memory, and lines of the log.

seen = Observed()
async with open_gateway(Backend("alpha"), observer=seen.observer) as gateway:
    ...
    [call] = seen.spans("tools/call", kind="client")
    [line] = seen.lines
"""

from __future__ import annotations

from typing import Any

import trio
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from gateway.observability.operations import Observing, RequestLog
from gateway.tracing.spans import Spans
from tests.support.harness import RecordingLog

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


class Observed:
    """One observer, and what it has seen. `sample`: the share of the traces that begin here."""

    def __init__(self, *, sample: float = 1.0, traces: bool = True, share: float = 1.0) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(ParentBased(TraceIdRatioBased(sample)), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.log = RecordingLog()
        spans = Spans(provider, "test") if traces else None
        self.observer = Observing(spans, RequestLog(self.log, share, lambda: 0.5), trio.current_time)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of requests."""
        return self.log.events("request")

    def of(self, method: str) -> list[dict[str, Any]]:
        """Those of one method."""
        return [line for line in self.lines if line["method"] == method]

    def spans(self, method: str = "tools/call", kind: str = "") -> list[ReadableSpan]:
        """The spans of a method that have ended, in the order of their ends."""
        return [
            span
            for span in self.exporter.get_finished_spans()
            if attributes(span).get("mcp.method.name") == method and kind.upper() in ("", span.kind.name)
        ]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def id_of(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def within(span: ReadableSpan) -> str:
    """The id of its parent."""
    return f"{span.parent.span_id:016x}" if span.parent is not None else ""


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links]


def resumptions(seen: Observed) -> list[ReadableSpan]:
    """The spans of GETs that came back for a stream."""
    return [span for span in seen.exporter.get_finished_spans() if "http.request.method" in attributes(span)]


def as_sent(seen: Observed) -> dict[str, Span]:
    """Its spans by name, from the bytes of OTLP that a collector is sent."""
    sent = encode_spans(seen.exporter.get_finished_spans()).SerializeToString()
    groups = ExportTraceServiceRequest.FromString(sent).resource_spans
    return {span.name.split(" ")[0]: span for group in groups for scope in group.scope_spans for span in scope.spans}
