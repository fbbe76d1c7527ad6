"""What tasks wait with: one place, and turns in the order of asking."""

from __future__ import annotations

import trio

from actors.runtime.places import Place, Turns


async def test_a_place_wakes_whoever_waits_and_says_whether_there_was_somebody(autojump_clock):
    place, woken = Place(), trio.Event()

    async def wait() -> None:
        await place.wait()
        woken.set()

    assert not place.wake()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        assert place.wake()
        await woken.wait()
    with trio.move_on_after(1):
        await place.wait()
    assert not place.wake()


async def test_turns_go_in_the_order_of_asking_and_a_free_one_is_had_at_once(autojump_clock):
    turns, order = Turns(), list[int]()

    async def work(number: int) -> None:
        async with turns:
            order.append(number)
            await trio.sleep(1)
            order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(work, number)
            await trio.sleep(0.1)
    assert order == [0, 0, 1, 1, 2, 2]
    assert not turns.taken


async def test_who_gives_up_waiting_for_a_turn_holds_nobody_up(autojump_clock):
    turns = Turns()

    async def work(seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with turns:
                await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for seconds in (5.0, 0.5, 5.0):
            nursery.start_soon(work, seconds)
            await trio.sleep(0.1)
    assert not turns.taken
    with trio.fail_after(1):
        async with turns:
            assert turns.taken
