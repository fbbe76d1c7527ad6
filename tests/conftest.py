"""For every test: property tests try the same examples in each run, so that a failure is there again when it is looked
at. `HYPOTHESIS_PROFILE=explore` tries new ones each time (`make chaos` does)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW_MACHINES = [HealthCheck.too_slow]

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=_SLOW_MACHINES)
settings.register_profile("explore", deadline=None, suppress_health_check=_SLOW_MACHINES)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
