"""The circuit breaker as values."""

from hypothesis import given
from hypothesis import strategies as st

from actors.machines.upstream.breaker import (
    FIRST_DELAY,
    LONGEST_DELAY,
    THRESHOLD,
    Breaker,
    BreakerState,
    attempt,
    delay,
    failed,
    succeeded,
    undecided,
)

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(THRESHOLD):
        breaker = failed(breaker, now, 0.0)
    return breaker


def test_a_few_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    for _ in range(THRESHOLD - 1):
        breaker = failed(breaker, 0.0, 0.0)
        assert (breaker.state, attempt(breaker, 0.0, "a")) == (CLOSED, (breaker, True))
    assert failed(breaker, 0.0, 0.0).state is OPEN
    assert succeeded(breaker) == Breaker()
    assert failed(succeeded(breaker), 0.0, 0.0).state is CLOSED


def test_an_open_one_lets_one_attempt_through_when_its_time_has_come() -> None:
    breaker = opened()
    assert attempt(breaker, breaker.until - 0.01, "a") == (breaker, False)
    probing, allowed = attempt(breaker, breaker.until, "a")
    assert (probing.state, allowed) == (HALF_OPEN, True)
    assert attempt(probing, breaker.until, "b") == (probing, False)
    assert attempt(probing, breaker.until, "a") == (probing, True), "whoever makes the attempt may ask again"
    assert succeeded(probing) == Breaker()


def test_an_attempt_that_showed_nothing_may_be_followed_by_another_at_once() -> None:
    breaker = opened()
    probing, _ = attempt(breaker, breaker.until, "a")
    assert undecided(probing, breaker.until, "b") == probing, "it was another's"
    assert attempt(undecided(probing, breaker.until, "a"), breaker.until, "b")[1]
    assert undecided(breaker, 0.0, "a") == breaker
    assert undecided(Breaker(), 0.0, "a") == Breaker()


def test_a_failed_attempt_opens_it_for_longer() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(10):
        waits.append(breaker.until - now)
        now = breaker.until
        breaker = failed(attempt(breaker, now, "a")[0], now, 0.0)
        assert breaker.state is OPEN
    assert waits == sorted(waits)
    assert waits[0] == FIRST_DELAY / 2
    assert waits[-1] == LONGEST_DELAY / 2


def test_many_links_lost_in_one_outage_are_one_failure() -> None:
    breaker = opened()
    assert failed(breaker, 0.1, 0.0) is breaker


def test_an_attempt_whose_outcome_never_comes_does_not_block_for_ever() -> None:
    probing, _ = attempt(opened(), 1.0, "a")
    assert attempt(probing, 1.0 + LONGEST_DELAY - 0.01, "b")[1] is False
    assert attempt(probing, 1.0 + LONGEST_DELAY, "b")[1] is True


def test_success_of_a_healthy_one_is_no_change() -> None:
    breaker = Breaker()
    assert succeeded(breaker) is breaker


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_delay_is_within_its_bounds(failures: int, jitter: float) -> None:
    assert FIRST_DELAY / 2 <= delay(failures, jitter) < LONGEST_DELAY + 1e-9
    assert delay(failures, jitter) <= delay(failures + 1, jitter)
