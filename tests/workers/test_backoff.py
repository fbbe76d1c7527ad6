"""How long a worker that ended unasked is waited for."""

from gateway.workers.backoff import LONGEST, STEADY, Backoff


def test_the_first_start_is_at_once_and_later_ones_wait_longer_and_longer_within_a_bound():
    backoff = Backoff()
    delays = [backoff.after(0.1) for _ in range(40)]
    assert delays[:6] == [0, 1, 2, 4, 8, 16]
    assert set(delays[6:]) == {LONGEST}


def test_one_that_lived_long_is_started_again_at_once():
    backoff = Backoff()
    for _ in range(5):
        backoff.after(0.1)
    assert backoff.after(STEADY) == 0
    assert backoff.after(0.1) == 1
