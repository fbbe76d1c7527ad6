"""Empty tables are one, and an actor that has nothing in hand has no other ones."""

from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from actors.runtime import EMPTY_SET, EMPTY_TABLE, System, put, without


def test_a_table_is_made_when_it_is_filled_and_is_the_same_from_then_on() -> None:
    table = put(EMPTY_TABLE, "a", 1)
    assert put(table, "b", 2) is table
    assert (table, EMPTY_TABLE) == ({"a": 1, "b": 2}, {})


def test_a_set_that_has_lost_its_last_member_is_the_empty_one_of_all() -> None:
    both = EMPTY_SET | {"a", "b"}
    assert without(both, "c") is both
    assert without(both, "a") == {"b"}
    assert without(without(both, "a"), "b") is without(EMPTY_SET, "a") is EMPTY_SET


@pytest.mark.parametrize(
    "fill",
    [
        lambda table: table.__setitem__("a", 1),
        lambda table: table.setdefault("a", 1),
        lambda table: table.update(a=1),
        lambda table: table.__ior__({"a": 1}),
    ],
    ids=["set", "setdefault", "update", "or"],
)
def test_what_is_everybodys_can_not_be_filled(fill: Any) -> None:
    with pytest.raises(TypeError):
        fill(EMPTY_TABLE)
    assert not EMPTY_TABLE


async def test_an_actor_with_nothing_in_hand_has_no_tables(system: System, recorder: Any) -> None:
    ref = system.spawn(recorder())
    cell: Any = ref.cell
    assert await ref.call(lambda reply: lambda _: reply.answer("done")) == "done"
    ref.cast(lambda self: self.ctx.set_timer("soon", 1, "tick"))
    ref.cast(lambda self: self.ctx.cancel_timer("soon"))
    await wait_all_tasks_blocked()
    assert cell.pending is cell.timers is cell.monitors is EMPTY_TABLE
