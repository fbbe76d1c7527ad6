"""Validation against the published JSON Schemas of each revision."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.schemas import check


@pytest.fixture(scope="session")
def conforms() -> Callable[[str, str, Any], None]:
    """conforms(version, definition, value): raises if the value is not what that revision's schema says."""

    def conforms(version: str, definition: str, value: Any) -> None:
        check(version, definition, value if isinstance(value, dict | list) else json.loads(bytes(value)))

    return conforms
