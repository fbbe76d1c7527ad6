"""One timer for many: each is visited after its seconds, and nobody after it was dropped."""

from __future__ import annotations

import trio

from gateway.http.rounds import Rounds


class Guest:
    def __init__(self, keep_alive: float) -> None:
        self.keep_alive = keep_alive
        self.visits: list[float] = []

    def visit(self) -> None:
        self.visits.append(trio.current_time())


async def test_each_is_visited_after_its_seconds_again_and_again(autojump_clock):
    rounds, began = Rounds(), trio.current_time()
    early, late = Guest(25), Guest(25)
    async with rounds.going():
        rounds.add(early)
        await trio.sleep(10)
        rounds.add(late)
        await trio.sleep(51)
        assert [round(at - began) for at in early.visits] == [25, 50]
        assert [round(at - began) for at in late.visits] == [35, 60]


async def test_who_was_dropped_is_visited_no_more_and_others_go_on(autojump_clock):
    rounds, guests = Rounds(), [Guest(25) for _ in range(3)]
    async with rounds.going():
        for guest in guests:
            rounds.add(guest)
        rounds.drop(guests[1])
        await trio.sleep(26)
        assert [len(guest.visits) for guest in guests] == [1, 0, 1]
        for guest in guests:
            rounds.drop(guest)
        await trio.sleep(100)
        rounds.add(guests[1])
        await trio.sleep(26)
        assert [len(guest.visits) for guest in guests] == [1, 1, 1]


async def test_who_is_visited_may_be_dropped_by_that(autojump_clock):
    rounds, guest = Rounds(), Guest(5)
    guest.visit = lambda: rounds.drop(guest)  # type: ignore[method-assign]
    async with rounds.going():
        rounds.add(guest)
        await trio.sleep(20)
        other = Guest(5)
        rounds.add(other)
        await trio.sleep(6)
        assert len(other.visits) == 1
