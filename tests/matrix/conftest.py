"""What the matrix shares."""

from tests.support.processes import programs

__all__ = ["programs"]
