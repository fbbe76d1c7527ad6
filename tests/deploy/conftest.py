"""What the tests of `deploy/` and `helm/` share."""

from __future__ import annotations

from tests.support.processes import programs, redis_url, shared_programs

__all__ = ["programs", "redis_url", "shared_programs"]
