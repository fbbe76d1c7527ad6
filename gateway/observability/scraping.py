"""What `/metrics` answers. The figures are copied where they are counted, and written down by another thread: a page of
megabytes takes longer than the event loop may stand still."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import trio

from actors.protocol.instruments import Instrument
from gateway.observability.metrics import Examples, Numbers


class Counted(Protocol):
    """Series with their declarations; `Metrics` is one."""

    @property
    def instruments(self) -> Sequence[Instrument]: ...

    def numbers(self) -> Numbers: ...

    def examples(self) -> Examples: ...


class Scraping:
    """The page, of these metrics and of this process; or of several, of which `process` says what the operating system
    counts of them."""

    def __init__(self, metrics: Counted, process: Callable[[], Mapping[str, float]] | None = None) -> None:
        self._metrics = metrics
        self._process = process
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def page(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type, in the form that the `Accept` header asks for."""
        metrics = self._metrics
        process = None if self._process is None else self._process()
        given = (tuple(metrics.instruments), metrics.numbers(), metrics.examples(), process, accept)
        return await trio.to_thread.run_sync(_write, *given, limiter=self._one_at_a_time)


def _write(
    instruments: Sequence[Instrument],
    numbers: Numbers,
    examples: Examples,
    process: Mapping[str, float] | None,
    accept: str,
) -> tuple[bytes, str]:
    from gateway.observability.exposition import write  # its library is for scrapes alone

    return write(instruments, numbers, examples, process, accept)
