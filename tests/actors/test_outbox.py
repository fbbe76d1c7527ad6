"""The outbox of one connection of a client: what it was given before is not said again, and it always ends."""

from __future__ import annotations

import pytest
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


def outbox(after: int | None = None) -> tuple[Connection, list[str]]:
    """A connection, and how often its reader was called."""
    calls: list[str] = []
    connection = Connection(1, "p1", (2, 1024), lambda *_: calls.append("closed"), after)
    connection.listen(lambda: calls.append("ready"))
    return connection, calls


def test_a_reader_that_does_not_wait_is_called_and_takes_all_that_is_there() -> None:
    connection, calls = outbox()
    assert calls == []
    assert connection.put(1, b"one", epoch=7)
    assert connection.put(2, b"two", epoch=8)
    assert calls == ["ready"] * 2
    assert connection.take() == (8, 1, 2, b"onetwo", False, False)
    assert connection.position == (8, 2)
    assert connection.take() == (8, 0, 2, b"", False, False)
    assert connection.put(3, b"three", epoch=8, last=True)
    assert connection.take() == (8, 3, 3, b"three", True, True)
    connection.close()
    assert calls[-1] == "closed"


def test_what_has_no_number_is_taken_without() -> None:
    connection, _ = outbox(after=3)
    assert connection.put(3, b"known to its client", epoch=7)
    assert connection.put(0, b"zero")
    assert connection.take() == (0, 0, 3, b"zero", False, False)
    assert connection.position is None


def test_a_reader_that_comes_late_is_called_at_once() -> None:
    calls: list[str] = []
    connection = Connection(1, "p1", (2, 1024), lambda *_: None)
    connection.put(1, b"one", epoch=7)
    connection.listen(lambda: calls.append("ready"))
    assert calls == ["ready"]


def test_what_was_taken_makes_room() -> None:
    connection, _ = outbox()
    assert connection.put(1, b"one")
    assert connection.put(2, b"two")
    assert not connection.put(3, b"three")
    connection.take()
    assert connection.put(3, b"three")


async def test_when_the_owner_is_lost_what_is_in_goes_out_and_it_is_said() -> None:
    connection = Connection(1, "p1", (8, 1024), lambda *_: None)
    assert connection.put(1, b"one", epoch=7)
    connection.lose()
    assert connection.put(2, b"two", epoch=7)
    with trio.fail_after(50):
        assert await connection.receive() == b"one"
        assert await connection.receive() is None
    assert connection.lost
    assert connection.position == (7, 1)


async def test_a_stream_that_has_ended_is_not_lost_any_more() -> None:
    connection = Connection(1, "p1", (8, 1024), lambda *_: None)
    assert connection.put(1, b"one", last=True)
    connection.lose()
    assert not connection.lost


@pytest.mark.parametrize("whole", [True, False])
def test_who_takes_says_whether_it_was_written(whole: bool) -> None:
    closed: list[bool] = []
    connection = Connection(1, "p1", (8, 1024), lambda _, whole: closed.append(whole))
    assert connection.put(1, b"one", epoch=7)
    connection.finish()
    assert connection.take() == (7, 1, 1, b"one", True, True)
    connection.close(whole=whole)
    assert closed == [whole]


def test_one_that_is_cut_or_lost_ends_unfinished() -> None:
    for end in (Connection.cut, Connection.lose, Connection.end):
        connection, _ = outbox()
        assert connection.put(1, b"one", epoch=7)
        end(connection)
        taken = connection.take()
        assert (taken.ended, taken.finished) == (True, False)
