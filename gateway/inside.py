"""The gateway of this process as a transport of its own client: the channel between the two, and nothing else."""

from collections.abc import Callable
from typing import Final

import trio

from actors.duplex import Duplex
from actors.ports import ANONYMOUS, NO_RIGHTS, Headers, HungUp, Rights
from gateway.client.errors import ConnectionLostError, not_resumable
from gateway.client.transport import Received

AHEAD: Final = 16
"""Messages that one side may say before the other has taken one."""


class Inside:
    """Implements the client's `Transport`. The gateway's side runs in the nursery, until this is closed."""

    session_id = None
    last_event_id = None

    def __init__(self, duplex: Duplex, endpoint: str, nursery: trio.Nursery) -> None:
        self._says, heard = trio.open_memory_channel[bytes](AHEAD)
        answers, self._hears = trio.open_memory_channel[bytes](AHEAD)
        nursery.start_soon(_serve, duplex, _Channel(heard, answers), endpoint)

    async def send(self, message: bytes, headers: Headers = ()) -> None:
        try:
            await self._says.send(message)
        except trio.BrokenResourceError:
            raise ConnectionLostError("the gateway has ended the connection", executed="no") from None

    async def receive(self) -> Received:
        try:
            return await self._hears.receive()
        except trio.EndOfChannel:
            raise ConnectionLostError("the gateway has ended the connection") from None

    async def close(self) -> None:
        self._says.close()  # the other side ends with that
        await trio.lowlevel.checkpoint()

    async def resume_from(self, event_id: str) -> None:
        await trio.lowlevel.checkpoint()
        raise not_resumable("a gateway in this process")


async def _serve(duplex: Duplex, channel: "_Channel", endpoint: str) -> None:
    with channel.heard, channel.answers:
        await duplex(channel, endpoint, ANONYMOUS)


class _Channel:
    """Implements the gateway's `Channel`."""

    rights: Rights = NO_RIGHTS
    peer = ""
    waiting = True

    def __init__(self, heard: trio.MemoryReceiveChannel[bytes], answers: trio.MemorySendChannel[bytes]) -> None:
        self.heard = heard
        self.answers = answers

    def listen(self, ready: Callable[[], object]) -> None:
        """Nobody is called: somebody always waits."""

    async def receive(self) -> bytes | None:
        try:
            return await self.heard.receive()
        except trio.EndOfChannel:
            raise HungUp from None

    async def send(self, message: bytes) -> None:
        try:
            await self.answers.send(message)
        except trio.BrokenResourceError:
            raise HungUp from None
