"""A client at one end of a channel that a test holds, and the gateway at the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import trio

from actors.ports import NO_RIGHTS, HungUp, Rights

Message = dict[str, Any]
WAIT = 3600.0
"""Seconds on the test's clock, which jumps."""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


class Wire:
    """Implements `Channel`. `got` is all that was sent to the client; with `stuck` nothing is taken."""

    duplex: Any = None
    """What serves it."""
    nursery: Any = None
    """Of the tasks that do."""
    calls = True
    """Whether it says when there is something to receive."""
    slowness = 0.0
    """Seconds in which it takes a message."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.ended = trio.Event()
        self.stuck = False
        self.rights: Rights = NO_RIGHTS
        self.peer = ""
        self._in, self._out = trio.open_memory_channel[bytes | None](1000)
        self._lot = trio.lowlevel.ParkingLot()
        self._next = 0
        self._ready: Callable[[], object] = lambda: None

    @property
    def waiting(self) -> bool:
        found = self._in.statistics()
        return not self.calls or found.current_buffer_used > 0 or not found.open_send_channels

    def listen(self, ready: Callable[[], object]) -> None:
        if self.calls:
            self._ready = ready

    async def receive(self) -> bytes | None:
        try:
            return await self._out.receive()
        except trio.EndOfChannel:
            raise HungUp from None

    async def send(self, message: bytes) -> None:
        assert b"\n" not in message
        await trio.sleep(self.slowness)
        if self.stuck:
            await trio.sleep(30)
            raise HungUp
        self.take(json.loads(message))

    # The client

    def take(self, message: Message) -> None:
        """Something came."""
        self.got.append(message)
        self._lot.unpark_all()

    def say(self, message: Message | bytes) -> None:
        self._put(message if isinstance(message, bytes) else json.dumps(message).encode())

    def _put(self, message: bytes | None) -> None:
        self._in.send_nowait(message)
        if self._in.statistics().current_buffer_used:
            self._ready()

    def ask(self, id: int | str, method: str, params: Message | None = None, *, modern: bool = False) -> None:
        given = {**(params or {}), **({"_meta": META | (params or {}).get("_meta", {})} if modern else {})}
        self.say({"jsonrpc": "2.0", "id": id, "method": method, "params": given})

    def tell(self, method: str, params: Message | None = None) -> None:
        self.say({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})

    def finish(self) -> None:
        """It says no more."""
        self._put(None)

    def hang_up(self) -> None:
        awaited = self._in.statistics().tasks_waiting_receive
        self._in.close()
        if not awaited:
            self._ready()

    async def initialize(self, version: str = "2025-11-25", **capabilities: Any) -> Message:
        info = {"name": "test", "version": "1"}
        self.ask(0, "initialize", {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info})
        answer = await self.answer(0)
        self.tell("notifications/initialized")
        return answer

    async def call(self, id: int | str, method: str, params: Message | None = None, **more: Any) -> Message:
        self.ask(id, method, params, **more)
        return await self.answer(id)

    async def answer(self, id: int | str) -> Message:
        """The response to a request, whenever it came."""
        return await self._until(lambda m: "method" not in m and m.get("id") == id)

    async def next(self, method: str) -> Message:
        """A request or notification of this method, whenever it came."""
        return await self._until(lambda m: m.get("method") == method)

    async def _until(self, fits: Any) -> Message:
        with trio.fail_after(WAIT):
            while not (found := [m for m in self.got if fits(m)]):
                await self._lot.park()
        return found[0]
