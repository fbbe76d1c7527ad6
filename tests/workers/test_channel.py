"""The channel between a supervisor and a worker."""

import socket

import trio
import trio.testing

from gateway.workers.channel import Channel, Drain, Hello, Look, State, ToWorker


def pair() -> tuple[Channel[State], Channel[ToWorker], socket.socket]:
    ours, theirs = socket.socketpair()
    return Channel(ours, State), Channel(theirs, ToWorker), ours


async def test_what_is_sent_arrives_in_order_and_the_end_is_noticed():
    supervisor, worker, _ = pair()
    hello = Hello(place=1, listeners=[7], listen=("127.0.0.1", 8080), store="redis://h", keys=[b"k"])
    for message in (hello, Look(3), Drain("SIGTERM")):
        await supervisor.send(message)
    assert [await worker.receive() for _ in range(3)] == [hello, Look(3), Drain("SIGTERM")]
    large = State(ready=True, numbers={"n": [(("a",) * 3, [float(i)] * 20) for i in range(5000)]})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.send, large)
        assert await supervisor.receive() == large
    await supervisor.aclose()
    assert await worker.receive() is None
    await worker.aclose()


async def test_what_another_version_says_is_passed_over():
    supervisor, worker, raw = pair()
    with raw.dup() as by_hand:
        for body in (b"\x81\xa4type\xa6Unheard"[:-1], b"\xc1", b""):
            by_hand.sendall(len(body).to_bytes(4, "big") + body)
    await supervisor.send(Look(1))
    assert await worker.receive() == Look(1)
    await supervisor.aclose()
    await worker.aclose()


async def test_a_frame_without_bound_ends_it():
    supervisor, worker, raw = pair()
    with raw.dup() as by_hand:
        by_hand.sendall(b"\xff\xff\xff\xff")
    assert await worker.receive() is None
    await supervisor.aclose()
    await worker.aclose()
