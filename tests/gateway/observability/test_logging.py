import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from actors.ports import Log
from gateway.observability import bound, configure, get_log


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging belongs to the whole process: put back what the test found."""
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, sys.excepthook
    yield
    sys.excepthook = hook
    logging.captureWarnings(False)
    structlog.reset_defaults()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


@pytest.fixture
def lines() -> Callable[..., Callable[[], list[dict[str, Any]]]]:
    """Sets JSON logging up; the returned function gives the lines so far."""

    def start(**options: Any) -> Callable[[], list[dict[str, Any]]]:
        stream = io.StringIO()
        configure(style="json", stream=stream, **options)
        return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]

    return start


def test_a_line_has_time_level_logger_event_and_values(lines: Callable[..., Any]) -> None:
    written = lines()
    log: Log = get_log("session")
    log.info("opened", backend="fx", count=2)
    [line] = written()
    assert line.pop("timestamp").endswith("Z")
    assert line == {"level": "info", "logger": "session", "event": "opened", "backend": "fx", "count": 2}


def test_lines_below_the_level_are_not_written(lines: Callable[..., Any]) -> None:
    written = lines(level="warning")
    log = get_log("x")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    logging.getLogger("library").info("e")
    logging.getLogger("library").error("f")
    assert [line["event"] for line in written()] == ["c", "d", "f"]


def test_ids_are_bound_for_the_handling_of_one_message_and_no_longer(lines: Callable[..., Any]) -> None:
    written = lines()
    log = get_log("x")
    with bound(session="h1", request="7"):
        log.info("inside")
        with bound(request="8"):
            log.info("nested")
        log.info("again")
    log.info("after")
    assert [(line.get("session"), line.get("request")) for line in written()] == [
        ("h1", "7"),
        ("h1", "8"),
        ("h1", "7"),
        (None, None),
    ]


def test_an_exception_is_part_of_its_line(lines: Callable[..., Any]) -> None:
    written = lines(secrets=["hush-hush-hush"])
    try:
        raise RuntimeError("it had hush-hush-hush in it")
    except RuntimeError:
        get_log("x").error("failed", exc_info=True)
    [line] = written()
    assert "RuntimeError: it had [redacted] in it" in line["exception"]


def test_what_nobody_has_caught_is_one_line_without_credentials(lines: Callable[..., Any]) -> None:
    written = lines(level="error", secrets=["hush-hush-hush"])
    try:
        raise ExceptionGroup("all", [ValueError("no hush-hush-hush here")])
    except ExceptionGroup as error:
        sys.excepthook(type(error), error, error.__traceback__)
    [line] = written()
    assert (line["level"], line["event"], line["logger"]) == ("critical", "crashed", "stagedoor")
    assert "ValueError: no [redacted] here" in line["exception"]


def test_what_libraries_log_goes_the_same_way(lines: Callable[..., Any]) -> None:
    written = lines()
    logging.getLogger("hypercorn.error").warning("from %s with Bearer abcdef", "afar")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
    first, second = written()
    assert (first["logger"], first["level"]) == ("hypercorn.error", "warning")
    assert first["event"] == "from afar with Bearer [redacted]"
    assert (second["logger"], "careful" in second["event"]) == ("py.warnings", True)


def test_values_that_json_does_not_know_are_written_all_the_same(lines: Callable[..., Any]) -> None:
    written = lines()
    get_log("x").info("odd", value=object(), raw=b"\xff", half="\ud800", several=(1, {"a"}))
    [line] = written()
    assert line["value"].startswith("<object object")
    assert (line["raw"], line["half"], line["several"]) == ("�", "\ud800", [1, ["a"]])


def test_console_lines_are_for_people_and_cannot_steer_a_terminal() -> None:
    stream = io.StringIO()
    configure(style="console", stream=stream)
    get_log("x").info("said", line="\x1b[2J\rgone\x9b1m", half="\ud800")
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\\x1b[2J" in text
    assert "said" in text
    assert not set(text) & {"\x1b", "\r", "\x9b"}


@pytest.mark.parametrize(("tty", "starts"), [(True, "\x1b"), (False, "{")])
def test_auto_is_console_on_a_terminal_and_json_elsewhere(tty: bool, starts: str) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return tty

    stream = Stream()
    configure(stream=stream)
    get_log("x").info("said")
    assert stream.getvalue().startswith(starts)


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_sink_that_fails_harms_nobody(style: Any) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left on device")

        def flush(self) -> None:
            raise OSError("broken pipe")

    configure(style=style, stream=Full())
    get_log("x").info("said")
    logging.getLogger("library").error("said")


def test_a_closed_stream_harms_nobody() -> None:
    stream = io.StringIO()
    configure(style="json", stream=stream)
    stream.close()
    get_log("x").info("said")


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("library", [False, True])
def test_12_no_secret_is_in_a_line_at_any_level_or_in_a_traceback(style: str, library: bool) -> None:
    stream = io.StringIO()
    configure("debug", style, ["the-configured-secret"], stream)  # type: ignore[arg-type]
    secrets = (
        "the-configured-secret",
        "0123456789abcdef-session",
        "Bearer abcdef-123456",
        "hunter2hunter2",
        "queryvalue",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    )
    url = f"https://me:{secrets[3]}@host/mcp?key={secrets[4]}"
    words = f"{secrets[0]} mcp-session-id: {secrets[1]} {secrets[2]} {url} {secrets[5]}"
    try:
        try:
            raise ValueError(words)
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        if library:
            logging.getLogger("some.library").debug("it said %s", words, exc_info=True)
        else:
            get_log("x").debug("failed", detail=words, headers={"Authorization": secrets[2]}, exc_info=True)
    written = stream.getvalue()
    assert "ValueError" in written
    for secret in secrets:
        assert secret.removeprefix("Bearer ") not in written
