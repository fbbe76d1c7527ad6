"""Validation against the published JSON Schemas of each revision."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

SCHEMAS = Path(__file__).parents[1] / "schema"


@functools.cache
def _schema(version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{version}.json").read_text())
    return loaded


@functools.cache
def _validator(version: str, definition: str) -> Any:
    schema = _schema(version)
    place = "$defs" if "$defs" in schema else "definitions"
    kind = jsonschema.validators.validator_for(schema)
    return kind({**schema, "$ref": f"#/{place}/{definition}"})


@pytest.fixture(scope="session")
def conforms() -> Callable[[str, str, Any], None]:
    """conforms(version, definition, value): raises if the value is not what that revision's schema says."""

    def check(version: str, definition: str, value: Any) -> None:
        if not isinstance(value, dict | list):
            value = json.loads(bytes(value))
        _validator(version, definition).validate(value)

    return check
