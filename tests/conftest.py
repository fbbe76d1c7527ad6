"""For every test: property tests try the same few examples in each run, so that a failure is there again when it is
looked at. `HYPOTHESIS_PROFILE=explore` tries many, and new ones each time (`make chaos` does). Which of the two is all
that says how many: a test does not.

Nothing is collected as garbage while the tests are (what is imported stays). Later the collector leaves it alone, and
runs seldom: it would look through the same living objects again and again, for a quarter of the time of some tests."""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

GARBAGE = 10_000
"""So many objects more than before, and the collector looks at them."""

_BOTH = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], report_multiple_bugs=False)

settings.register_profile("repeatable", _BOTH, max_examples=30, derandomize=True)
settings.register_profile("explore", _BOTH, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

gc.disable()


def pytest_collection_finish() -> None:
    """Before the first test."""
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()
