"""One worker as its supervisor sees it: a process, the channel to it, and what it said last."""

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import trio

from gateway.workers.channel import Channel, Drain, FromWorker, Hello, Look, State, ToWorker

LAST_WORDS = 1.0
"""Seconds in which what an ended process had still sent is read."""
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
        self._channel: Channel[FromWorker] | None = None
        self._asked = 0
        self._answered = trio.Condition()
        self._silent = trio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether it takes new work."""
        return self.state is not None and self.state.ready and not self.draining and not self.ended.is_set()

    def drain(self, reason: str) -> None:
        """Tells it to end in order; it is killed when that takes too long."""
        self._reason, self.draining = reason, True
        self._drain.set()

    async def look(self) -> None:
        """Until it has said how it is at this moment. For ever, if it does not answer."""
        self._asked += 1
        number = self._asked
        await self._send(Look(number))
        async with self._answered:
            while not self.ended.is_set() and (self.state is None or self.state.answers < number):
                await self._answered.wait()

    async def run(self) -> int:
        """Its exit status (negative: the signal that ended it). Cancelled, it is killed."""
        began = trio.current_time()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, FromWorker)
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
                nursery.start_soon(self._converse, hello, process)
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
                await self._channel.aclose()
            self.lived = trio.current_time() - began
            self.ended.set()
            self.ready.set()
        assert process.returncode is not None
        return process.returncode

    async def _converse(self, hello: Hello, process: trio.Process) -> None:
        assert self._channel is not None
        await self._send(hello)
        while (state := await self._channel.receive()) is not None:
            self.state = state
            if state.ready:
                self.ready.set()
            async with self._answered:
                self._answered.notify_all()
            self._on_state(self)
        self._silent.set()
        await self._kill_unless(self.ended, KILLED_WITHIN, process)

    async def _limit(self, process: trio.Process) -> None:
        """Kills it when it does not get ready in time, or has been told to drain and does not end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(self._kill_unless, self.ready, self._plan.ready_within, process))
            await self._drain.wait()
            await self._send(Drain(self._reason))
            await self._kill_unless(self.ended, self._plan.end_within, process)

    async def _kill_unless(self, event: trio.Event, seconds: float, process: trio.Process) -> None:
        with trio.move_on_after(seconds):
            await event.wait()
            return
        process.kill()

    async def _send(self, message: ToWorker) -> None:
        assert self._channel is not None
        try:
            await self._channel.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # it has ended, which is noticed by itself
