"""What of a test's server is pinned."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Raw

from actors.protocol import definitions
from actors.protocol import payload as json
from actors.protocol.definitions import Definitions, Introduction
from actors.protocol.pins import Mode, Pins
from tests.support.harness import Gateway
from tests.support.mcp_backend import Backend


def definitions_of(backend: Backend) -> Definitions:
    """All that it has at present."""
    lists = {method: [json.dumps(item) for item in items] for method, items in backend.lists.items()}
    said = backend.welcome.get("instructions")
    return Definitions(definitions.SCHEMA, "", Introduction("2025-11-25", Raw(b"{}"), Raw(b"{}"), said), lists)


def pins_of(backend: Backend, mode: Mode = "block") -> Pins:
    """As if all that it has at present were accepted."""
    return Pins(mode, definitions_of(backend))


def pin(gateway: Gateway, *backends: Backend, mode: Mode = "block") -> None:
    """Accepts what these servers have at present, as a reload with another lock file does."""
    specs = gateway.services.table.value.backends
    fresh = {b.name: replace(specs[b.name], pins=pins_of(b, mode)) for b in backends}
    gateway.change(backends={**specs, **fresh})


def with_pins(*backends: Backend, mode: Mode = "block") -> tuple[Backend, ...]:
    """The same servers; what they have at present is pinned from the start."""
    for backend in backends:
        backend.spec = replace(backend.spec, pins=pins_of(backend, mode))
    return backends
