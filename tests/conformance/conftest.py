"""What the conformance tests share."""

from tests.support.processes import node, programs

__all__ = ["node", "programs"]
