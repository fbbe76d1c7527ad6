"""What `stagedoor pin` finds out: what each server of a configuration defines at present."""

import json
from dataclasses import replace
from typing import Any, Final, TypeAlias

import trio
from msgspec import Raw

from actors.protocol import definitions
from actors.protocol.definitions import Definitions, Introduction
from actors.protocol.pins import NAMED_BY, pin
from actors.protocol.subjects import LISTED
from gateway.calling import AT_ONCE, ConfiguredClient, open_configured
from gateway.cli.client import ClientFailedError
from gateway.config import Settings

Defined: TypeAlias = Definitions | str
"""What a server defines, or why that can't be had."""
_CAPABILITY: Final = {"tools/list": "tools", "prompts/list": "prompts"}


async def define(settings: Settings, names: tuple[str, ...]) -> dict[str, Defined]:
    """By server, of these, each connected to as it is, whatever its pins say."""
    table = settings.table
    backends = {
        n: replace(spec, pins=None, enabled_tools=None, disabled_tools=()) for n, spec in table.backends.items()
    }
    found: dict[str, Defined] = {}
    places = trio.CapacityLimiter(AT_ONCE)
    everything = replace(settings, table=replace(table, backends=backends))
    async with open_configured(everything) as client, trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(_define, client, name, found, places)
    return {name: found[name] for name in names}


async def _define(
    everything: ConfiguredClient, name: str, found: dict[str, Defined], places: trio.CapacityLimiter
) -> None:
    async with places, everything.alone(name) as client:
        try:
            said = (await client.begun()).raw
            declared = said.get("capabilities", {})
            lists = {
                method: _pinned(method, await client.items(method))
                for method in LISTED
                if _CAPABILITY.get(method, "resources") in declared
            }
        except ClientFailedError as error:
            found[name] = str(error)
            return
    found[name] = Definitions(
        definitions.SCHEMA, "", _introduction(said), {m: items for m, items in lists.items() if items}
    )


def _pinned(method: str, items: list[dict[str, Any]]) -> list[Raw]:
    """What is pinned of them, by name. (Of what has no name, or can't be read, there is nothing to be pinned.)"""
    kind = LISTED[method]
    named: dict[str, Raw] = {}
    for item in items:
        form = pin(kind, Raw(json.dumps(item).encode())).form
        if form and isinstance(item.get(NAMED_BY[kind]), str):
            named.setdefault(item[NAMED_BY[kind]], Raw(form.encode()))
    return [named[name] for name in sorted(named)]


def _introduction(said: dict[str, Any]) -> Introduction:
    server, instructions = said.get("serverInfo") or {}, said.get("instructions")
    shown = {key: server[key] for key in ("name", "version") if isinstance(server.get(key), str)}
    return Introduction(
        str(said.get("protocolVersion", "")),
        Raw(b"{}"),
        Raw(json.dumps(shown).encode()),
        instructions if isinstance(instructions, str) else None,
    )
