"""Places and connections are neither lost nor given twice, whatever is cancelled when."""

import contextlib

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.errors import PoolFullError
from gateway.wire.origins import OriginPool


class Fake:
    def __init__(self) -> None:
        self.idle_since = 0.0
        self.idle_at_most = 1000.0
        self.usable = True
        self.closed = False

    def is_usable(self) -> bool:
        return self.usable

    def close(self) -> None:
        assert not self.closed
        self.closed = True


async def connect() -> Fake:
    await trio.lowlevel.checkpoint()
    return Fake()


def origin(**limits) -> OriginPool[Fake]:
    return OriginPool(**{"connections": 2, "waiting": 2, "wait": 10, "idle": 2, "idle_time": 30, **limits})


async def test_the_connection_used_last_is_taken_first_and_bad_ones_are_closed():
    pool = origin()
    first, second = await pool.acquire(connect), await pool.acquire(connect)
    pool.release(first)
    pool.release(second)
    second.usable = False
    assert pool.take_idle() is first
    assert second.closed
    assert repr(pool) == "<open 1, idle 0, waiting 0>"


async def test_a_connection_that_is_spoilt_on_its_way_to_who_waits_is_replaced(nursery):
    pool = origin(connections=1)
    first = await pool.acquire(connect)
    got = []

    async def wait() -> None:
        got.append(await pool.acquire(connect))

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    pool.release(first)
    first.usable = False
    await trio.testing.wait_all_tasks_blocked()
    assert first.closed
    assert got != [first]
    assert repr(pool) == "<open 1, idle 0, waiting 0>"


async def test_a_connection_idle_for_too_long_is_closed(autojump_clock):
    pool = origin()
    first, second = await pool.acquire(connect), await pool.acquire(connect)
    pool.release(first)
    await trio.sleep(31)
    pool.release(second)
    assert (first.closed, second.closed) == (True, False)


async def test_a_connection_that_its_peer_is_about_to_close_is_not_used_again(autojump_clock):
    pool, other = origin(), origin()
    first, second = await pool.acquire(connect), await pool.acquire(connect)
    first.idle_at_most, second.idle_at_most = 5, 4
    for connection in (first, second):
        pool.release(connection)
    await trio.sleep(4)
    assert pool.part_with_idle() is first
    other.take_in(first)
    await trio.sleep(1)  # in the other pool it has been idle no less
    assert other.take_idle() is None
    assert (first.closed, second.closed) == (True, True)
    assert (repr(pool), repr(other)) == 2 * ("<open 0, idle 0, waiting 0>",)


async def test_more_idle_connections_than_wanted_are_closed():
    pool = origin(connections=3, idle=1)
    taken = [await pool.acquire(connect) for _ in range(3)]
    for connection in taken:
        pool.release(connection)
    assert [connection.closed for connection in taken] == [False, True, True]


async def test_a_waiter_gets_the_released_connection_or_the_place_of_a_discarded_one(autojump_clock):
    pool = origin()
    first, second = await pool.acquire(connect), await pool.acquire(connect)
    got = []

    async def acquire():
        got.append(await pool.acquire(connect))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire)
        nursery.start_soon(acquire)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(PoolFullError):
            await pool.acquire(connect)
        pool.release(first)
        pool.discard(second)
    assert first in got
    assert second not in got
    assert repr(pool) == "<open 2, idle 0, waiting 0>"


async def test_waiting_ends_after_its_time(autojump_clock):
    pool = origin(connections=1)
    await pool.acquire(connect)
    with pytest.raises(PoolFullError):
        await pool.acquire(connect)
    assert trio.current_time() == 10
    assert repr(pool) == "<open 1, idle 0, waiting 0>"


@pytest.mark.parametrize("how", ["release", "discard"])
async def test_what_a_cancelled_waiter_was_given_goes_to_the_next(how):
    pool = origin(connections=1)
    held = await pool.acquire(connect)
    got = []

    async def acquire(scope):
        with scope:
            got.append(await pool.acquire(connect))

    first, second = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acquire, first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(acquire, second)
        await trio.testing.wait_all_tasks_blocked()
        first.cancel()
        getattr(pool, how)(held)
    assert len(got) == 1
    assert repr(pool) == "<open 1, idle 0, waiting 0>"


async def test_a_failed_connect_gives_its_place_back():
    pool = origin(connections=1)

    async def refuse() -> Fake:
        raise OSError

    with pytest.raises(OSError):
        await pool.acquire(refuse)
    assert pool.open == 0


@given(st.lists(st.tuples(st.sampled_from(["start", "release", "discard", "cancel", "spoil"]), st.integers(0, 5))))
def test_places_are_conserved(steps):
    async def scenario():
        pool = origin(connections=2, waiting=3)
        held: list[Fake] = []
        scopes: list[trio.CancelScope] = []

        async def acquire(scope):
            with scope:
                connection = pool.take_idle()
                with contextlib.suppress(PoolFullError):
                    held.append(connection or await pool.acquire(connect))

        async with trio.open_nursery() as nursery:
            for step, choice in steps:
                if step == "start":
                    scopes.append(trio.CancelScope())
                    nursery.start_soon(acquire, scopes[-1])
                elif step == "cancel" and scopes:
                    scopes.pop(choice % len(scopes)).cancel()
                elif step == "spoil" and held:
                    held[choice % len(held)].usable = False
                elif step in ("release", "discard") and held:
                    getattr(pool, step)(held.pop(choice % len(held)))
                if choice % 2:
                    await trio.testing.wait_all_tasks_blocked()
                    assert pool.open == len(held) + len(pool.idle) <= 2
            nursery.cancel_scope.cancel()
        for connection in held:
            pool.release(connection)
        pool.close()
        assert repr(pool) == "<open 0, idle 0, waiting 0>"

    trio.run(scenario)
