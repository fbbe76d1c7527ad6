"""Real gateways and servers, each test's own."""

from tests.support.processes import programs

__all__ = ["programs"]
