"""How a line of the log is made, by structlog."""

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import structlog
from structlog.typing import EventDict, Processor

from gateway.observability.flood import Flood
from gateway.observability.redaction import Redaction

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}


class Sink(Protocol):
    """Takes lines, and writes them somewhere."""

    def write(self, text: str) -> Any: ...

    def flush(self) -> Any: ...


class Lines:
    """Lines for people (`console`, in colours or not) or as JSON."""

    def __init__(self, sink: Sink, secrets: Iterable[str], *, console: bool, colors: bool) -> None:
        shared: list[Processor] = [
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            Redaction(secrets),
        ]
        render: list[Processor] = [structlog.processors.JSONRenderer()]
        if console:
            render = [_printable, structlog.dev.ConsoleRenderer(colors=colors)]
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(sink),  # type: ignore[arg-type]  # it writes and flushes
            processors=[Flood(), *shared, *render],
            wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        ).bind()
        self._formatter = structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )

    def write(self, method: str, event: str, values: dict[str, Any]) -> None:
        """Writes one, of the level that the method is called after."""
        getattr(self._logger, method)(event, **values)

    def foreign(self, record: logging.LogRecord) -> str:
        """What a library said by the standard module."""
        return self._formatter.format(record)

    def bound(self, **ids: Any) -> AbstractContextManager[None]:
        """These values are in each line of this task inside the block."""
        return structlog.contextvars.bound_contextvars(**ids)


def _printable(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """What a backend writes to its standard error must not steer the terminal of whoever reads the log."""
    return {key: _visible(value) if isinstance(value, str) else value for key, value in event.items()}


def _visible(text: str) -> str:
    return text.translate(_CONTROL).encode("utf-8", "backslashreplace").decode()


def _logger_name(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record: logging.LogRecord = event["_record"]
    return {**event, "logger": record.name}
