"""What the matrix shares."""

from tests.support.processes import node, programs, shared_programs

__all__ = ["node", "programs", "shared_programs"]
