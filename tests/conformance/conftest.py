"""What the conformance tests share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.conformance.judging import Verdicts, judge
from tests.support.processes import node, programs, shared_programs

__all__ = ["node", "programs", "shared_programs"]


@pytest.fixture(scope="session")
def verdicts(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Verdicts]:
    """Of the suite on one of our clients in a revision; the run is made when it is first asked for."""

    @cache
    def of(client: str, revision: str) -> Verdicts:
        return judge(Path(__file__).with_name(client), revision, node, tmp_path_factory.mktemp("suite"))

    return of
