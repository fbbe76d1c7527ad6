"""One task that waits for many sockets."""

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from gateway.wire.watch import Watch
from tests.support.patience import PATIENCE


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair() for _ in range(3)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


async def test_each_is_woken_once(pairs):
    woken: list[int] = []
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            watch = Watch(nursery)
            for number, (ours, _) in enumerate(pairs):
                watch.start(ours.fileno(), lambda number=number: woken.append(number))
            for number in (2, 0):
                pairs[number][1].send(b"xx")
                await trio.testing.wait_all_tasks_blocked(0.05)
            assert woken == [2, 0]
            assert len(nursery.child_tasks) == 1
            pairs[1][1].close()
        # The last one was woken by its end, so that nobody waits and the nursery has nobody left.
        assert woken == [2, 0, 1]


async def test_who_was_stopped_is_not_woken_and_may_begin_again_at_once(pairs):
    woken: list[str] = []
    (ours, theirs), *_ = pairs
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            watch = Watch(nursery)
            watch.stop(ours.fileno())
            watch.start(ours.fileno(), lambda: woken.append("first"))
            await trio.testing.wait_all_tasks_blocked()
            watch.stop(ours.fileno())
            watch.stop(ours.fileno())
            watch.start(ours.fileno(), lambda: woken.append("second"))
            theirs.send(b"x")
        assert woken == ["second"]


async def test_one_who_is_woken_may_stop_another(pairs):
    woken: list[int] = []
    fds = [ours.fileno() for ours, _ in pairs]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            watch = Watch(nursery)

            def wake(number: int) -> None:
                woken.append(number)
                for fd in fds:
                    watch.stop(fd)

            for number, fd in enumerate(fds):
                watch.start(fd, lambda number=number: wake(number))
            for _, theirs in pairs:
                theirs.send(b"x")
    assert len(woken) == 1
