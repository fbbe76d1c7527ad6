"""Spans leave by a bounded queue and a thread; what can't be sent is counted, and holds up nobody."""

import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from gateway.tracing import export
from gateway.tracing.export import DROPPED, EXPORTED, Exporting
from tests.support.harness import RecordingLog, RecordingTelemetry


class Sender:
    """Takes spans, or not, and perhaps never comes back."""

    def __init__(self, result=SpanExportResult.SUCCESS, gate=None):
        self.batches, self.result, self.gate = [], result, gate

    def export(self, spans, /):
        self.batches.append(list(spans))
        if self.gate is not None:
            trio.from_thread.run(self.gate.wait)
        return self.result

    def shutdown(self):
        """Nothing is open."""


def tracer(exporting):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(exporting)
    return provider.get_tracer("test")


def spans(exporting, count):
    made = tracer(exporting)
    for _ in range(count):
        made.start_span("one").end()


async def test_what_waits_is_sent_in_batches_and_counted():
    sender, telemetry = Sender(), RecordingTelemetry()
    exporting = Exporting(sender, telemetry, RecordingLog())
    spans(exporting, export.BATCH + 3)
    await exporting.flush()
    assert [len(batch) for batch in sender.batches] == [export.BATCH, 3]
    assert telemetry.total(EXPORTED) == export.BATCH + 3
    assert len(exporting) == 0


async def test_a_full_batch_wakes_the_sender(autojump_clock):
    sender = Sender()
    exporting = Exporting(sender, RecordingTelemetry(), RecordingLog())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exporting.run)
        await trio.testing.wait_all_tasks_blocked()
        spans(exporting, export.BATCH)
        began = trio.current_time()
        while len(exporting):
            await trio.lowlevel.checkpoint()
        assert trio.current_time() - began < export.PERIOD
        nursery.cancel_scope.cancel()


async def test_a_queue_that_is_full_drops_and_counts(monkeypatch):
    monkeypatch.setattr(export, "QUEUE", 5)
    telemetry = RecordingTelemetry()
    exporting = Exporting(Sender(), telemetry, RecordingLog())
    spans(exporting, 8)
    assert len(exporting) == 5
    assert telemetry.total(DROPPED, "queue_full") == 3


async def test_what_the_collector_refuses_is_counted_and_the_next_is_tried():
    sender, telemetry = Sender(SpanExportResult.FAILURE), RecordingTelemetry()
    exporting = Exporting(sender, telemetry, RecordingLog())
    spans(exporting, 3)
    await exporting.flush()
    sender.result = SpanExportResult.SUCCESS
    spans(exporting, 2)
    await exporting.flush()
    assert telemetry.total(DROPPED, "not_sent") == 3
    assert telemetry.total(EXPORTED) == 2


async def test_a_collector_that_never_answers_is_left_at_the_end():
    gate, telemetry = trio.Event(), RecordingTelemetry()
    exporting = Exporting(Sender(gate=gate), telemetry, RecordingLog())
    spans(exporting, export.BATCH + 1)
    with trio.move_on_after(0.01) as scope:
        await exporting.flush()
    assert scope.cancelled_caught
    exporting.give_up()
    gate.set()
    assert telemetry.total(DROPPED, "not_sent") == export.BATCH + 1


async def test_that_the_collector_takes_nothing_is_told_once_and_when_it_does_again():
    sender, log = Sender(SpanExportResult.FAILURE), RecordingLog()
    exporting = Exporting(sender, RecordingTelemetry(), log)
    for result in (SpanExportResult.FAILURE, SpanExportResult.FAILURE, SpanExportResult.SUCCESS):
        sender.result = result
        spans(exporting, 1)
        await exporting.flush()
    assert [len(log.events(event)) for event in ("spans_not_sent", "spans_sent_again")] == [1, 1]
