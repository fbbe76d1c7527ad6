"""The outbox of one connection of a client: what it was given before is not said again, and it always ends."""

from __future__ import annotations

import trio

from actors.streams.connection import Connection


async def test_the_last_event_ends_it_also_for_a_client_that_says_it_has_it() -> None:
    closed: list[bool] = []
    connection = Connection(1, "p1", (8, 1024), lambda _, whole: closed.append(whole), after=3)
    assert connection.put(2, b"two")
    assert connection.put(3, b"three", last=True)
    with trio.fail_after(50):
        assert await connection.receive() is None
    connection.close()
    assert closed == [True]


async def test_what_comes_after_the_number_of_its_client_is_said_in_order() -> None:
    connection = Connection(1, "p1", (8, 1024), lambda *_: None, after=1)
    for number, frame in enumerate((b"one", b"two", b"three"), 1):
        assert connection.put(number, frame, last=number == 3)
    with trio.fail_after(50):
        assert await connection.receive() == b"twothree"
        assert await connection.receive() is None
