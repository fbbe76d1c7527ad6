"""Sends spans to a collector, by OTLP over HTTP, where it hurts nobody: calls put them in a bounded queue and go on.

A thread encodes and sends; a collector that is slow or away costs spans, which are counted, and nothing else. The log
says when it takes none, and when it does again.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import trio
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from actors.ports import Log, Telemetry

QUEUE: Final = 4096
"""Spans that wait; further ones are dropped."""
BATCH: Final = 512
"""Spans that are sent together, and wake the sender."""
PERIOD: Final = 1.0
"""Seconds that fewer of them wait."""

DROPPED: Final = "stagedoor_spans_dropped_total"
EXPORTED: Final = "stagedoor_spans_exported_total"


class Sender(Protocol):
    """What is needed of the library's exporter. It may block."""

    def export(self, spans: Sequence[ReadableSpan], /) -> SpanExportResult: ...

    def shutdown(self) -> None: ...


class Exporting(SpanProcessor):
    """A processor of the SDK, for a loop that must not wait."""

    def __init__(self, sender: SpanExporter | Sender, telemetry: Telemetry, log: Log) -> None:
        self._sender = sender
        self._telemetry = telemetry
        self._log = log
        self._taken = True
        """The collector took the last ones."""
        self._queue: list[ReadableSpan] = []
        self._full = trio.Event()
        self._thread = trio.CapacityLimiter(1)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is to be done."""

    def on_end(self, span: ReadableSpan) -> None:
        """Puts it in the queue, if there is room."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        if len(self._queue) >= QUEUE:
            self._telemetry.count(DROPPED, ("queue_full",))
            return
        self._queue.append(span)
        if len(self._queue) >= BATCH:
            self._full.set()

    async def run(self) -> None:
        """Sends until it is cancelled."""
        while True:
            with trio.move_on_after(PERIOD):
                await self._full.wait()
            self._full = trio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Sends all that waits."""
        while self._queue:
            batch = self._queue[:BATCH]
            del self._queue[:BATCH]
            sent = False
            try:
                result = await trio.to_thread.run_sync(
                    self._sender.export, batch, abandon_on_cancel=True, limiter=self._thread
                )
                sent = result is SpanExportResult.SUCCESS
                self._tell(taken=sent)
            finally:
                if sent:
                    self._telemetry.count(EXPORTED, (), len(batch))
                else:
                    self._telemetry.count(DROPPED, ("not_sent",), len(batch))

    def _tell(self, *, taken: bool) -> None:
        if self._taken and not taken:
            self._log.warning("spans_not_sent", hint="the collector takes none: spans are dropped, and counted")
        elif taken and not self._taken:
            self._log.info("spans_sent_again")
        self._taken = taken

    def give_up(self) -> None:
        """What still waits is sent no more, and counted."""
        if self._queue:
            self._telemetry.count(DROPPED, ("not_sent",), len(self._queue))
            self._queue.clear()
