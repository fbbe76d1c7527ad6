"""For every test: property tests try the same few examples in each run, so that a failure is there again when it is
looked at. `HYPOTHESIS_PROFILE=explore` tries many, and new ones each time (`make chaos` does). Which of the two is all
that says how many: a test does not.

Nothing is collected as garbage while the tests are (what is imported stays). Later the collector leaves it alone, and
runs seldom: it would look through the same living objects again and again, for a quarter of the time of some tests."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

GARBAGE = 10_000
"""So many objects more than before, and the collector looks at them."""

_BOTH = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], report_multiple_bugs=False)

settings.register_profile("repeatable", _BOTH, max_examples=30, derandomize=True)
settings.register_profile("explore", _BOTH, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Before the first test. Clients of other people leave sockets to the collector, whose warnings are for the test
    that they are from: where there are real ones, it runs as it does by itself."""
    if not any(item.get_closest_marker("e2e") for item in session.items):
        gc.freeze()
        gc.set_threshold(GARBAGE)
    gc.enable()
