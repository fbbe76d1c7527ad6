"""Warnings that come too often are left out of the log, and counted."""

import pytest
import structlog

from gateway.observability.flood import BURST, MAX_KEYS, RATE, Flood


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def flood(clock: Clock) -> Flood:
    return Flood(clock)


def passed(flood: Flood, times: int, method: str = "warning", **values: str) -> int:
    count = 0
    for _ in range(times):
        try:
            flood(None, method, {"event": "dropped", **values})
        except structlog.DropEvent:
            continue
        count += 1
    return count


def test_a_flood_of_one_warning_is_thinned_to_its_rate(flood: Flood, clock: Clock) -> None:
    assert passed(flood, 10_000) == BURST
    clock.now += 2
    assert passed(flood, 10_000) == 2 * RATE


def test_the_next_one_says_how_many_were_left_out(flood: Flood, clock: Clock) -> None:
    passed(flood, int(BURST) + 5)
    clock.now += 1
    assert flood(None, "warning", {"event": "dropped"}) == {"event": "dropped", "suppressed": 5}
    assert flood(None, "warning", {"event": "dropped"}) == {"event": "dropped"}


def test_another_event_another_backend_and_another_level_are_not_held_up(flood: Flood) -> None:
    passed(flood, 1000, backend="alpha")
    assert passed(flood, 1, backend="beta") == 1
    assert passed(flood, 1) == 1
    assert flood(None, "warning", {"event": "other", "backend": "alpha"})
    assert passed(flood, 1000, "error", backend="alpha") == 1000
    assert passed(flood, 1000, "info", backend="alpha") == 1000


def test_what_is_told_apart_is_bounded(flood: Flood) -> None:
    for n in range(3 * MAX_KEYS):
        passed(flood, 1, backend=str(n))
    assert len(flood) == MAX_KEYS
