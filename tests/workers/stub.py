"""A worker that is no gateway: it answers each request with its process id, and keeps to the supervisor's channel.

Run as a program, as the supervisor runs workers: the last argument is the descriptor of the channel. Its first argument
says how it behaves: `serve`, `fail` (ends at once), `mute` (is never ready), `stay` (does not end when told to drain),
`linger` (takes a while to, as it says before), or a file: `fail` as long as that exists.
"""

import os
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from gateway.workers.channel import Ask, Channel, Drain, Hello, Look, State, Told, ToWorker

SAY_EVERY = 0.05
LINGERS = 2.0
SLOW = "/slow"


class Stub:
    def __init__(self, behaviour: str, channel: Channel[ToWorker], hello: Hello) -> None:
        self.behaviour = behaviour
        self.channel = channel
        self.hello = hello
        self.answered = 0
        self.draining = trio.Event()

    def state(self, answers: int = 0) -> State:
        numbers = {"stagedoor_http_responses_total": [(("GET", "200"), float(self.answered))]}
        ready = self.behaviour != "mute" and not self.draining.is_set()
        return State(
            ready=ready,
            incarnation=f"of-{os.getpid()}",
            numbers=numbers,
            answers=answers,
            details={"sessions": 1},
            ends_within=60.0 if self.behaviour == "linger" else 0.0,
        )

    async def hear(self) -> None:
        while (message := await self.channel.receive()) is not None:
            if isinstance(message, Look):
                await self.tell(message.number)
            elif isinstance(message, Ask) and message.name != "nobody":
                body = {"pid": os.getpid(), "what": message.what, "name": message.name, **message.options}
                if message.what == "where":  # the session of this name belongs to the worker of this name
                    body = {"key": message.name, "owner": message.name}
                await self.channel.send(Told(message.number, 200, body))
            elif isinstance(message, Drain) and self.behaviour != "stay":
                self.draining.set()
        self.draining.set()

    async def say(self) -> None:
        while True:
            await self.tell()
            await trio.sleep(SAY_EVERY)

    async def tell(self, answers: int = 0) -> None:
        with suppress(trio.BrokenResourceError):  # the supervisor is gone
            await self.channel.send(self.state(answers))

    async def handle(self, stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                data = await stream.receive_some()
                if not data:
                    return
                head += data
            if head.startswith(f"GET {SLOW}".encode()):
                await trio.sleep(0.5)
            body = str(os.getpid()).encode()
            self.answered += 1
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )

    async def run(self) -> None:
        listeners = [
            trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=one)))
            for one in self.hello.listeners
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.hear)
            nursery.start_soon(self.say)
            async with trio.open_nursery() as accepting, trio.open_nursery() as loop:
                loop.start_soon(partial(trio.serve_listeners, self.handle, listeners, handler_nursery=accepting))
                await self.draining.wait()
                loop.cancel_scope.cancel()
            if self.behaviour == "linger":
                await trio.sleep(LINGERS)
            await self.tell()
            nursery.cancel_scope.cancel()


async def main() -> None:
    behaviour, descriptor = sys.argv[1], int(sys.argv[2])
    if behaviour == "fail" or (behaviour.startswith("/") and Path(behaviour).exists()):
        sys.exit(3)
    channel: Channel[ToWorker] = Channel(socket.socket(fileno=descriptor), ToWorker)
    hello = await channel.receive()
    assert isinstance(hello, Hello)
    await Stub(behaviour, channel, hello).run()


if __name__ == "__main__":
    trio.run(main)
