"""What the tests with real processes need."""

from tests.support.processes import programs

__all__ = ["programs"]
