"""One worker as its supervisor sees it: a process, the channel to it, and what it said last."""

import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import msgspec
import trio

from gateway.workers.channel import Ask, Channel, Drain, FromWorker, Hello, Look, State, Told, ToWorker

LAST_WORDS = 1.0
"""Seconds in which what an ended process had still sent is read."""
UNREAD = 64
"""Messages that wait for a worker to read them; more are dropped."""
KILLED_WITHIN = 5.0
"""Seconds in which the kernel ends a process, and in which one that has closed its channel ends by itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every worker gets, and how long the steps of its life may take, in seconds."""

    workers: int
    command: tuple[str, ...]
    """What starts one; the descriptor of its channel follows as last word."""
    hello: Hello
    ready_within: float = 60.0
    """From its start; then it is killed."""
    end_within: float = 30.0
    """From the word to drain; then it is killed."""


class Worker:
    """One process, from `run` to its end."""

    def __init__(self, place: int, plan: Plan, on_state: Callable[["Worker"], object]) -> None:
        self.place = place
        self.pid = 0
        self.state: State | None = None
        self.draining = False
        self.ready = trio.Event()
        """It was ready once, or has ended."""
        self.ended = trio.Event()
        """The process is gone."""
        self.lived = 0.0
        """Seconds, once it has ended."""
        self._plan = plan
        self._on_state = on_state
        self._drain = trio.Event()
        self._reason = ""
        self._post, self._outbox = trio.open_memory_channel[ToWorker](UNREAD)
        self._asked = 0
        self._heard = trio.Condition()
        self._silent = trio.Event()
        self._told: dict[int, Told | None] = {}
        """Answers, None as long as one is waited for."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes new work."""
        return self.state is not None and self.state.ready and not self.draining and not self.ended.is_set()

    @property
    def incarnation(self) -> str:
        """Its name in the store, as it said last; empty if it has none."""
        return self.state.incarnation if self.state is not None else ""

    def drain(self, reason: str) -> None:
        """Tells it to end in order; it is killed when that takes too long."""
        self._reason, self.draining = reason, True
        self._drain.set()

    async def look(self) -> None:
        """Until it has said how it is at this moment. For ever, if it does not answer."""
        self._asked += 1
        number = self._asked
        self._send(Look(number))
        async with self._heard:
            while not self.ended.is_set() and (self.state is None or self.state.answers < number):
                await self._heard.wait()

    async def ask(self, what: str, name: str, options: Mapping[str, str]) -> tuple[int, dict[str, Any]] | None:
        """What it says to a question about sessions; None: it has ended."""
        self._asked += 1
        number = self._asked
        self._told[number] = None
        try:
            self._send(Ask(number, what, name, dict(options)))
            async with self._heard:
                while self._told[number] is None and not self.ended.is_set():
                    await self._heard.wait()
        finally:
            told = self._told.pop(number)
        return None if told is None else (told.status, told.body)

    async def run(self) -> int:
        """Its exit status (negative: the signal that ended it). Cancelled, it is killed."""
        began = trio.current_time()
        ours, theirs = socket.socketpair()
        channel: Channel[FromWorker] = Channel(ours, FromWorker)
        hello = msgspec.structs.replace(self._plan.hello, place=self.place)
        with theirs:
            process: trio.Process = await trio.lowlevel.open_process(
                [*self._plan.command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *hello.listeners),
                start_new_session=True,  # so that Ctrl-C in a terminal is the supervisor's to hand on
            )
        self.pid = process.pid
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, channel, hello)
                nursery.start_soon(self._read, channel, process)
                nursery.start_soon(self._limit, process)
                await process.wait()
                with trio.move_on_after(LAST_WORDS):
                    await self._silent.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(KILLED_WITHIN, shield=True):
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                await channel.aclose()
            self.lived = trio.current_time() - began
            self.ended.set()
            self.ready.set()
            with trio.move_on_after(KILLED_WITHIN, shield=True):
                await self._wake()
        assert process.returncode is not None
        return process.returncode

    async def _write(self, channel: Channel[FromWorker], hello: Hello) -> None:
        with suppress(trio.BrokenResourceError):  # it has ended, which is noticed by itself
            await channel.send(hello)
            async for message in self._outbox:
                await channel.send(message)

    async def _read(self, channel: Channel[FromWorker], process: trio.Process) -> None:
        while (said := await channel.receive()) is not None:
            match said:
                case State():
                    self._hear(said)
                case Told(number):
                    if number in self._told:
                        self._told[number] = said
                case _:
                    assert_never(said)
            await self._wake()
        self._silent.set()
        await self._kill_unless(self.ended, KILLED_WITHIN, process)

    def _hear(self, state: State) -> None:
        self.state = state
        if state.ready:
            self.ready.set()
        self._on_state(self)

    async def _wake(self) -> None:
        """Whoever waits for an answer looks again."""
        async with self._heard:
            self._heard.notify_all()

    async def _limit(self, process: trio.Process) -> None:
        """Kills it when it does not get ready in time, or has been told to drain and does not end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(self._kill_unless, self.ready, self._plan.ready_within, process))
            await self._drain.wait()
            self._send(Drain(self._reason))
            await self._kill_unless(self.ended, self._plan.end_within, process)

    async def _kill_unless(self, event: trio.Event, seconds: float, process: trio.Process) -> None:
        with trio.move_on_after(seconds):
            await event.wait()
            return
        process.kill()

    def _send(self, message: ToWorker) -> None:
        with suppress(trio.WouldBlock):  # it does not read: what is asked is not answered, and in the end it is killed
            self._post.send_nowait(message)
