"""What the matrix shares."""

from tests.support.processes import node, programs

__all__ = ["node", "programs"]
