from typing import Any

from gateway.observability import Repeats
from gateway.observability.repeats import MAX_KEYS


class Sheet:
    """A log that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def debug(self, event: str, **values: Any) -> None:
        self.lines.append(("debug", event, values))

    def info(self, event: str, **values: Any) -> None:
        self.lines.append(("info", event, values))

    def warning(self, event: str, **values: Any) -> None:
        self.lines.append(("warning", event, values))

    def error(self, event: str, **values: Any) -> None:
        self.lines.append(("error", event, values))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_is_told_and_repeats_are_counted_until_the_interval_is_over() -> None:
    sheet, clock = Sheet(), Clock()
    repeats = Repeats(sheet, 60, clock)
    for clock.now in (0, 1, 59.9, 60, 61, 200, 400):
        repeats.warning("away", key="fx", at=clock.now)
    assert sheet.lines == [
        ("warning", "away", {"at": 0}),
        ("warning", "away", {"at": 60, "suppressed": 2}),
        ("warning", "away", {"at": 200, "suppressed": 1}),
        ("warning", "away", {"at": 400}),
    ]


def test_other_keys_and_other_events_are_told_on_their_own() -> None:
    sheet = Sheet()
    repeats = Repeats(sheet, 60, Clock())
    repeats.warning("away", key="a")
    repeats.warning("away", key="b")
    repeats.error("broken", key="a")
    repeats.info("away")
    repeats.info("away")
    assert [(level, event) for level, event, _ in sheet.lines] == [
        ("warning", "away"),
        ("warning", "away"),
        ("error", "broken"),
        ("info", "away"),
    ]


def test_what_is_remembered_is_bounded() -> None:
    sheet = Sheet()
    repeats = Repeats(sheet, 60, Clock())
    for n in range(MAX_KEYS + 1):
        repeats.warning("away", key=str(n))
    repeats.warning("away", key=str(MAX_KEYS))
    repeats.warning("away", key="0")
    assert len(sheet.lines) == MAX_KEYS + 2
