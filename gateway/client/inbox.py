"""What has come from a server and was not received yet."""

from typing import Final

import trio

from actors.ports import FrameReceived
from gateway.client.transport import Received

ROOM: Final = 16 * 1024 * 1024
"""Bytes of messages that may wait: beyond that no stream is read on."""
BURST: Final = 16 * ROOM
"""Bytes that may wait of what has no stream to stop: of a server in this process."""
EACH: Final = 256
"""Bytes that a message counts beside its own."""
MESSAGES: Final = 100_000
"""Messages that may wait: no streams but answers make so many, and with a further one the connection ends."""


class Inbox:
    """Whoever settles requests takes at once what is here. Where nobody does, a stream is read no further, so that a
    server that sends without end fills no memory."""

    def __init__(self) -> None:
        self._sender, self._waiting = trio.open_memory_channel[Received](MESSAGES)
        self._held = 0
        self._taken = trio.lowlevel.ParkingLot()
        self._closed = False

    @property
    def overflows(self) -> bool:
        """Whether more waits than whoever cannot stop what is sent may let wait: then the connection ends."""
        return self._closed or self._held >= BURST

    def put(self, received: Received) -> None:
        """Never waits. Where nothing is received any more, nothing happens."""
        try:
            self._sender.send_nowait(received)
        except trio.WouldBlock:
            self.close()
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return
        else:
            self._held += _size(received)

    async def room(self) -> None:
        """Waits until more may come, or nothing has to: what reads a stream does before it reads on."""
        await trio.lowlevel.checkpoint()
        while self._held >= ROOM and not self._closed:
            await self._taken.park()

    async def receive(self) -> Received:
        """The next message. EndOfChannel once nothing more can come."""
        received = await self._waiting.receive()
        self._held -= _size(received)
        if self._held < ROOM:
            self._taken.unpark_all()
        return received

    def close(self) -> None:
        """Nothing more comes. May be called twice."""
        self._closed = True
        self._sender.close()
        self._taken.unpark_all()


def _size(received: Received) -> int:
    frame = received.frame if isinstance(received, FrameReceived) else received
    return EACH + (len(frame) if isinstance(frame, bytes) else 0)
