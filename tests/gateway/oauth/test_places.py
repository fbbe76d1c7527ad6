"""Each has places of his own."""

import trio
import trio.testing

from gateway.oauth.places import Places


async def test_nobody_waits_for_the_places_of_another_one() -> None:
    places = Places[str](2)
    async with places.of("a"), places.of("b"):
        assert len(places) == 2
    assert len(places) == 0
    order: list[str] = []

    async def enter(who: str, after: trio.Event) -> None:
        async with places.of(who):
            order.append(who)
            await after.wait()

    go = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(enter, "a", go)
        nursery.start_soon(enter, "b", go)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(order) == ["a", "a", "b"]
        go.set()
    assert order.count("a") == 3
