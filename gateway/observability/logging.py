"""Structured logs by structlog: one event name and its values a line, as JSON or as text for people.

What libraries log by the standard module goes the same way. No line holds a credential or a session id
(`gateway.observability.redaction`), no peer can fill the log with warnings (`flood`), and
a sink that fails (a closed pipe, a full disk) harms nobody.
"""

import contextlib
import logging
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

from gateway.observability.flood import Flood
from gateway.observability.redaction import Redaction

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}


def configure(
    level: str = "info",
    style: Literal["auto", "json", "console"] = "auto",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Sets up logging of the whole process, by default to standard error. Call it before any log is made."""
    stream = sys.stderr if stream is None else stream
    console = style == "console" or (style == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        Redaction(secrets),
    ]
    render: list[Processor] = [structlog.processors.JSONRenderer()]
    if console:
        render = [_printable, structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    sink = _Sink(stream)
    structlog.configure(
        processors=[Flood(), *shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sink),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    _adopt_standard_logging(LEVELS[level], sink, shared, render)


def get_log(name: str) -> Any:
    """A log whose lines carry `logger=name`; it is a `Log` as the actors want it."""
    return structlog.get_logger().bind(logger=name)


def bound(**ids: Any) -> AbstractContextManager[None]:
    """Adds values to every line that this task logs inside the block.

    For the handling of one message: a value bound where a task is started would stay with it for life.
    """
    return structlog.contextvars.bound_contextvars(**ids)


class _Sink:
    """A stream whose failures are nobody's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def _printable(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """What a backend writes to its standard error must not steer the terminal of whoever reads the log."""
    return {key: _visible(value) if isinstance(value, str) else value for key, value in event.items()}


def _visible(text: str) -> str:
    return text.translate(_CONTROL).encode("utf-8", "backslashreplace").decode()


def _adopt_standard_logging(level: int, sink: _Sink, shared: list[Processor], render: list[Processor]) -> None:
    handler = logging.StreamHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)


def _logger_name(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record: logging.LogRecord = event["_record"]
    return {**event, "logger": record.name}
