"""What a session and its connection to a server weigh while nothing goes on: they are many."""

from typing import Any

import pytest
import trio

from actors.runtime import Ref
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend

ROOMS = ("sessions", "endpoints", "upstreams", "streams", "record", "durations")
OURS = tuple(f"actors.{room}" for room in ROOMS)


def parts(actor: Any) -> list[Any]:
    """An actor and the parts that are its alone, as far as they point at each other."""
    found, left = [], [actor]
    while left:
        part = left.pop()
        if type(part).__module__.startswith(OURS) and not any(part is other for other in found):
            found.append(part)
            left += members(part).values()
    return found


def members(part: Any) -> dict[str, Any]:
    slots = {name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())}
    return {name: getattr(part, name) for name in [*slots, *getattr(part, "__dict__", ())] if hasattr(part, name)}


def empty(ref: Ref, other: Ref) -> list[str]:
    """Where it has an empty table that another actor of its kind does not share."""
    shared = {id(value) for part in parts(other.cell.actor) for value in members(part).values()}
    return [
        f"{type(part).__name__}.{name}"
        for part in parts(ref.cell.actor)
        for name, value in members(part).items()
        if type(value) in (dict, set, frozenset) and not value and id(value) not in shared
    ]


@pytest.mark.parametrize("endpoint", ["alpha", ""])
async def test_an_idle_session_and_its_connection_have_no_empty_tables_of_their_own(
    autojump_clock: object, endpoint: str
) -> None:
    async with open_gateway(Backend("alpha", tools=("echo",), kind="http")) as gateway:
        for _ in range(2):
            client = await gateway.connect(endpoint)
            await client.names()
            await client.tool("echo" if endpoint else "alpha__echo")
        await trio.sleep(1)
        first, second = (session.ref for session in gateway.actors.sessions.table.values())
        assert empty(first, second) == []
        assert empty(*list(gateway.actors.tree.upstreams.children())[-2:]) == []
