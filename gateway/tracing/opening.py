"""From the configuration, and what OpenTelemetry's own variables say besides, to spans that are sent."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import trio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from actors.ports import Log, Telemetry
from gateway.tracing.export import Exporting
from gateway.tracing.spans import Spans

FLUSH_WITHIN: Final = 2.0
"""Seconds at the end of the process for spans that were not sent yet."""
PATH: Final = "/v1/traces"
SERVICE: Final = "stagedoor"


def address(endpoint: str | None) -> str | None:
    """Where traces go: a URL without a path is that of the collector, as the variables have it."""
    if endpoint is None:
        return None  # the library reads the variables
    return endpoint.rstrip("/") + PATH if urlsplit(endpoint).path in ("", "/") else endpoint


def resource(instance: str, version: str) -> Resource:
    """Who sends: what the environment says counts more, but for the instance."""
    ours = Resource({"service.name": SERVICE, "service.version": version})
    return ours.merge(OTELResourceDetector().detect()).merge(Resource({"service.instance.id": instance}))


@asynccontextmanager
async def open_spans(
    endpoint: str | None,
    headers: Mapping[str, str],
    sample: float | None,
    telemetry: Telemetry,
    log: Log,
    *,
    instance: str,
    version: str,
) -> AsyncIterator[Spans]:
    """Spans that are sent while the block runs, and what is left at its end."""
    # It says of each attempt that failed; we count them.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    sender = OTLPSpanExporter(address(endpoint), headers=dict(headers) or None)
    sampler = None if sample is None else ParentBased(TraceIdRatioBased(sample))
    provider = TracerProvider(sampler, resource(instance, version), shutdown_on_exit=False)
    exporting = Exporting(sender, telemetry, log)
    provider.add_span_processor(exporting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporting.run)
        try:
            yield Spans(provider, version)
        finally:
            nursery.cancel_scope.cancel()
            with trio.move_on_after(FLUSH_WITHIN, shield=True):
                await exporting.flush()
            exporting.give_up()
            sender.shutdown()  # type: ignore[no-untyped-call]  # it only ends the wait between two attempts
