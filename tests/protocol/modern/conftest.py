"""Requests of the era without sessions, their headers, and validation against its schema."""

import functools
import json
from pathlib import Path

import jsonschema
import pytest
from msgspec import Raw

from actors.protocol.modern.meta import CAPABILITIES_KEY, VERSION_KEY
from actors.protocol.versions import MODERN

SCHEMAS = Path(__file__).parents[2] / "schema"


@functools.cache
def _validator(version, definition):
    schema = json.loads((SCHEMAS / f"{version}.json").read_text())
    place = "$defs" if "$defs" in schema else "definitions"
    kind = jsonschema.validators.validator_for(schema)
    return kind({**schema, "$ref": f"#/{place}/{definition}"})


@pytest.fixture(scope="session")
def conforms():
    """conforms(version, definition, value): raises if the value is not what that revision's schema says."""

    def check(version, definition, value):
        if not isinstance(value, dict | list):
            value = json.loads(bytes(value))
        _validator(version, definition).validate(value)

    return check


@pytest.fixture(scope="session")
def raw():
    return lambda value: Raw(json.dumps(value).encode())


@pytest.fixture(scope="session")
def params():
    """Params of a request with the envelope that each needs; `meta` adds keys, or takes them out where None."""

    def make(meta=None, **members):
        keys = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}, **(meta or {})}
        return {**members, "_meta": {key: value for key, value in keys.items() if value is not None}}

    return make
