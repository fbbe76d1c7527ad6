"""Cancelled at any step, a request leaves nothing behind and the pool goes on."""

import pytest
import trio
import trio.testing

from gateway.wire.errors import WireError
from gateway.wire.pool import Pool, PoolLimits
from tests.support.cancel import cancel_everywhere
from tests.support.exchanges import answer_to

ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
END = b"0\r\n\r\n"


class MemoryWire:
    """A stream to a server in memory; every operation takes a few steps."""

    open = 0

    def __init__(self) -> None:
        self._ours, self._theirs = trio.testing.memory_stream_pair()
        self._held = b""
        self._reading = trio.Lock()
        MemoryWire.open += 1

    def send_nowait(self, data: bytes) -> int:
        return 0

    async def send_all(self, data: memoryview) -> None:
        await self._ours.send_all(bytes(data))

    async def receive_some(self, at_most: int, ready: bool = False) -> bytes:
        async with self._reading:  # one that was cancelled takes a step to be over
            held, self._held = self._held, b""
            return held or bytes(await self._ours.receive_some(at_most))

    async def wait_readable(self) -> None:
        async with self._reading:
            self._held = self._held or bytes(await self._ours.receive_some())

    def is_quiet(self) -> bool:
        return True

    def close(self) -> None:
        MemoryWire.open -= 1
        self._ours.send_stream.close()
        self._ours.receive_stream.close()
        self._theirs.send_stream.close()
        self._theirs.receive_stream.close()

    async def _request(self) -> bytes:
        return bytes(await self._theirs.receive_some())

    async def serve(self) -> None:
        try:
            while await self._request():
                for piece in (ANSWER[:30], ANSWER[30:], END):
                    await trio.sleep(0.01)
                    await self._theirs.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


class QuickWire(MemoryWire):
    """Takes a request without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._sent, self._come = trio.open_memory_channel[bytes](10)

    def send_nowait(self, data: bytes) -> int:
        self._sent.send_nowait(data)
        return len(data)

    def close(self) -> None:
        super().close()
        self._sent.close()

    async def _request(self) -> bytes:
        async for data in self._come:
            return data
        return b""


async def ask(pool: Pool) -> bytes | None:
    with await pool.request("POST", "http://x/", body=b"x") as response:
        return await response.read(100)


async def start(pool: Pool) -> bytes | None:
    return await answer_to(pool, "http://x/", b"x")


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize(("way", "wire"), [(ask, MemoryWire), (start, MemoryWire), (start, QuickWire)])
async def test_a_request_may_be_cancelled_at_every_step(connections, way, wire):
    async def scenario(scope: trio.CancelScope) -> None:
        MemoryWire.open = 0
        async with trio.open_nursery() as servers:

            async def dial(origin, tls, within):
                await trio.lowlevel.checkpoint()
                stream = wire()
                servers.start_soon(stream.serve)
                return stream

            pool = Pool(PoolLimits(connections=connections), nursery=servers, connect=dial)

            async def call() -> None:
                assert await way(pool) == b"abc"

            with scope:
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(call)
                await call()
            await call()
            pool.close()
            await trio.testing.wait_all_tasks_blocked()
            assert MemoryWire.open == 0
            assert repr(pool) == "<Pool http://x: <open 0, idle 0, waiting 0>>"
            servers.cancel_scope.cancel()

    assert len(list(await trio.to_thread.run_sync(cancel_everywhere, scenario))) > 20


async def test_a_write_that_stalls_is_an_error_after_its_time(autojump_clock):
    class Stalled(MemoryWire):
        async def send_all(self, data: memoryview) -> None:
            await trio.sleep_forever()

    async def dial(origin, tls, within):
        return Stalled()

    pool = Pool(connect=dial)
    with pytest.raises(WireError):
        await pool.request("POST", "http://x/", body=b"x")
    assert trio.current_time() == 30
