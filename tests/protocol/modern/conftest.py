"""Requests of the era without sessions."""

import json

import pytest
from msgspec import Raw

from actors.protocol.meta import CAPABILITIES_KEY, VERSION_KEY
from actors.protocol.versions import MODERN


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
