"""Structured logs: one event name and its values a line, as JSON or as text for people.

What libraries log by the standard module goes the same way, and so does the exception by which the process ends. No
line holds a credential or a session id (`gateway.observability.redaction`), no peer can fill the log with warnings
(`flood`), and a sink that fails (a closed pipe, a full disk) harms nobody. The library behind it
(`gateway.observability.lines`) is loaded by the first line that is written: many a process never says anything.
"""

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from gateway.observability.lines import Lines

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(
    level: str = "info",
    style: Literal["auto", "json", "console"] = "auto",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Sets up logging of the whole process, by default to standard error."""
    global _writer
    stream = sys.stderr if stream is None else stream
    console = style == "console" or (style == "auto" and stream.isatty())
    _writer = _Writer(LEVELS[level], console, tuple(secrets), stream)
    _adopt_standard_logging(_writer)
    sys.excepthook = _crashed


def prepare() -> None:
    """Loads the library now, if anything but trouble is to be written."""
    if _writer.level <= logging.INFO:
        _ = _writer.lines


def get_log(name: str) -> Any:
    """A log whose lines carry `logger=name`; it is a `Log` as the actors want it."""
    return _Log({"logger": name})


def bound(**ids: Any) -> AbstractContextManager[None]:
    """Adds values to every line that this task logs inside the block.

    For the handling of one message: a value bound where a task is started would stay with it for life.
    """
    return _writer.lines.bound(**ids)


class _Writer:
    """Writes the lines of this process."""

    def __init__(self, level: int, console: bool, secrets: tuple[str, ...], stream: TextIO) -> None:
        self.level = level
        self.sink = _Sink(stream)
        self._console = console
        self._colors = console and stream.isatty()
        self._secrets = secrets

    @cached_property
    def lines(self) -> "Lines":
        """How they are made."""
        with _without("rich"):  # takes as long as all the rest, for tracebacks in colours that we don't use
            from gateway.observability.lines import Lines
        return Lines(self.sink, self._secrets, console=self._console, colors=self._colors)

    def write(self, level: int, method: str, event: str, values: dict[str, Any]) -> None:
        """One line, if it is important enough."""
        if level >= self.level:
            self.lines.write(method, event, values)


class _Log:
    """Writes by whatever `configure` said last."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def bind(self, **values: Any) -> "_Log":
        return _Log({**self._values, **values})

    def debug(self, event: str, **values: Any) -> None:
        _writer.write(logging.DEBUG, "debug", event, {**self._values, **values})

    def info(self, event: str, **values: Any) -> None:
        _writer.write(logging.INFO, "info", event, {**self._values, **values})

    def warning(self, event: str, **values: Any) -> None:
        _writer.write(logging.WARNING, "warning", event, {**self._values, **values})

    def error(self, event: str, **values: Any) -> None:
        _writer.write(logging.ERROR, "error", event, {**self._values, **values})

    def critical(self, event: str, **values: Any) -> None:
        _writer.write(logging.CRITICAL, "critical", event, {**self._values, **values})


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


class _Adopted(logging.StreamHandler[_Sink]):
    """Writes what libraries log."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__(writer.sink)
        self._writer = writer

    def format(self, record: logging.LogRecord) -> str:
        return self._writer.lines.foreign(record)


def _adopt_standard_logging(writer: _Writer) -> None:
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(_Adopted(writer))
    root.setLevel(writer.level)
    logging.captureWarnings(True)


def _crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What nobody has caught. Python would print it as it is: many lines, with what credentials there are in it."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        _writer.write(logging.CRITICAL, "critical", "crashed", {"logger": "stagedoor", "exc_info": error})


@contextlib.contextmanager
def _without(library: str) -> Iterator[None]:
    """Inside the block this library is not there for those who would import it, unless it was imported before."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # as `import` has it
    try:
        yield
    finally:
        del sys.modules[library]


_writer = _Writer(logging.INFO, True, (), sys.stderr)
