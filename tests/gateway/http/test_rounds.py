"""One timer for many: each is visited after its seconds, nobody after it was dropped; what a visit asks of a peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from actors.ports import ANONYMOUS, Asker, HungUp
from gateway.http.conversation import WebSocketChannel
from gateway.http.rounds import Rounds
from gateway.http.token_life import TokenLife


class Guest:
    def __init__(self, patience: float) -> None:
        self.patience = patience
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


async def test_who_has_less_patience_is_not_kept_waiting_by_others(autojump_clock):
    rounds, began = Rounds(), trio.current_time()
    guests = [Guest(25), Guest(3), Guest(10)]
    async with rounds.going():
        for guest in guests:
            rounds.add(guest)
        await trio.sleep(4)
        guests[1].patience = -1.0  # it is over by its own clock
        await trio.sleep(22)
        assert [round(at - began) for at in guests[0].visits] == [25]
        assert [round(at - began) for at in guests[2].visits] == [10, 20]
        assert [round(at - began) for at in guests[1].visits[:2]] == [3, 6]
        assert len(guests[1].visits) < 300


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


class Socket:
    """One whose peer says nothing."""

    heard = 0.0
    waiting = False

    def __init__(self) -> None:
        self.pings: list[float] = []
        self._looks, self._looked = trio.open_memory_channel[None](9)

    def listen(self, ready: Callable[[], object]) -> None:
        pass

    def wake(self) -> None:
        self._looks.send_nowait(None)

    async def receive(self) -> Any:
        await self._looked.receive()
        return {"type": "websocket.woken"}

    async def send(self, message: Any) -> None:
        assert message == {"type": "websocket.ping"}
        self.pings.append(trio.current_time())


async def test_a_peer_that_was_pinged_late_has_time_to_answer(autojump_clock):
    socket, began = Socket(), trio.current_time()
    socket.heard = began
    token_life = TokenLife(Asker(ANONYMOUS), lambda asker: False)
    channel = WebSocketChannel(socket.receive, socket.send, socket, 20.0, token_life)
    rounds = Rounds()
    async with rounds.going():
        rounds.add(channel)
        await trio.sleep(39)  # nobody looked up, since a message was being delivered
        with pytest.raises(HungUp):
            await channel.receive()
    assert [round(at - began) for at in socket.pings] == [39]
    assert round(trio.current_time() - began) == 60, "not at the visit one second after the ping"
