"""What the fuzzer shares with other tests."""

from tests.support.processes import programs

__all__ = ["programs"]
