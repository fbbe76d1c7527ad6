"""The store that is scripted to fail is one: it has each operation of the port, as the port has it."""

from __future__ import annotations

import inspect
from typing import Any

from actors.ports import Store
from tests.faults.store import FaultyStore


def test_it_takes_what_the_port_takes() -> None:
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        if not name.startswith("_"):
            assert _parameters(getattr(FaultyStore, name)) == _parameters(method), name


def _parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
