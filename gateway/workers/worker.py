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

from gateway.workers.channel import Ask, Channel, Drain, FromWorker, Hello, Look, Reload, State, Told, ToWorker

LAST_WORDS = 1.0
"""Seconds in which what an ended process had still sent is read."""
UNREAD = 64
"""Questions that wait for a worker to read them; more are dropped."""
TICK = 0.5
"""Seconds between two looks at whether a worker has said something."""
UNHEARD = 3.0
"""Seconds without a word after which a worker counts as not ready: it says one every half second."""
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
    """From the word to drain; then it is killed. One that says that its drain takes longer has so long."""
    silent_within: float = 10.0
    """Without a word, once it was ready; then it is killed."""


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
        """Seconds from when it was ready to its last word, once it has ended."""
        self._plan = plan
        self._on_state = on_state
        self._drain = trio.Event()
        self._reason = ""
        # One place is for the word to drain, which is said whatever else waits.
        self._post, self._outbox = trio.open_memory_channel[ToWorker](UNREAD + 1)
        self._asked = 0
        self._answered = 0
        """The number of the last look that was answered."""
        self._quiet = 0.0
        self._began: float | None = None
        """When it was ready first."""
        self._news = trio.Condition()
        self._closed = trio.Event()
        """Its end of the channel is."""
        self._told: dict[int, Told | None] = {}
        """Answers, None as long as one is waited for."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes new work."""
        ready = self.state is not None and self.state.ready and not self.silent
        return ready and not self.draining and not self.ended.is_set()

    @property
    def silent(self) -> bool:
        """Whether it has said nothing for so long that what it said last may not be so any more."""
        return self._quiet >= UNHEARD

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
        self._ask(Look(number))
        async with self._news:
            while not self.ended.is_set() and self._answered < number:
                await self._news.wait()

    async def ask(self, what: str, name: str, options: Mapping[str, str]) -> tuple[int, dict[str, Any]] | None:
        """What it says to a question about sessions; None: it has ended."""
        return await self._answer(lambda number: Ask(number, what, name, dict(options)))

    async def reload(self, config: bytes, *, commit: bool) -> tuple[int, dict[str, Any]] | None:
        """Whether it can use this configuration, or has put it in force; None: it has ended."""
        return await self._answer(lambda number: Reload(number, config, commit))

    async def _answer(self, question: Callable[[int], ToWorker]) -> tuple[int, dict[str, Any]] | None:
        self._asked += 1
        number = self._asked
        self._told[number] = None
        try:
            self._ask(question(number))
            async with self._news:
                while self._told[number] is None and not self.ended.is_set():
                    await self._news.wait()
        finally:
            told = self._told.pop(number)
        return None if told is None else (told.status, told.body)

    async def run(self) -> int:
        """Its exit status (negative: the signal that ended it). Cancelled, it is killed. Raises OSError if it can't be
        started."""
        try:
            ours, theirs = socket.socketpair()
            channel: Channel[FromWorker] = Channel(ours, FromWorker)
            try:
                return await self._live(await self._start(theirs), channel)
            finally:
                with trio.move_on_after(KILLED_WITHIN, shield=True):
                    await channel.aclose()
        finally:
            if self._began is not None:
                self.lived = trio.current_time() - self._began - self._quiet
            self.ended.set()
            self.ready.set()
            with trio.move_on_after(KILLED_WITHIN, shield=True):
                await self._wake()

    async def _start(self, theirs: socket.socket) -> trio.Process:
        with theirs:
            process: trio.Process = await trio.lowlevel.open_process(
                [*self._plan.command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *self._plan.hello.listeners),
                start_new_session=True,  # so that Ctrl-C in a terminal is the supervisor's to hand on
            )
        self.pid = process.pid
        return process

    async def _live(self, process: trio.Process, channel: Channel[FromWorker]) -> int:
        """Until the process has ended, and what it had still to say was heard."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, channel)
                nursery.start_soon(self._read, channel, process)
                nursery.start_soon(self._limit, process)
                nursery.start_soon(self.kill_if_silent, process)
                await process.wait()
                with trio.move_on_after(LAST_WORDS):
                    await self._closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(KILLED_WITHIN, shield=True):
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        assert process.returncode is not None
        return process.returncode

    async def _write(self, channel: Channel[FromWorker]) -> None:
        with suppress(trio.BrokenResourceError):  # it has ended, which is noticed by itself
            await channel.send(msgspec.structs.replace(self._plan.hello, place=self.place))
            async for message in self._outbox:
                await channel.send(message)

    async def _read(self, channel: Channel[FromWorker], process: trio.Process) -> None:
        while (said := await channel.receive()) is not None:
            await self.heard(said)
        self._closed.set()
        await self._kill_unless(self.ended, KILLED_WITHIN, process)

    async def heard(self, said: FromWorker) -> None:
        """It says so; whoever waits for an answer looks."""
        self._quiet = 0.0
        match said:
            case State():
                self._look_at(said)
            case Told(number):
                if number in self._told:
                    self._told[number] = said
            case _:
                assert_never(said)
        await self._wake()

    def _look_at(self, state: State) -> None:
        self.state = state
        self._answered = max(self._answered, state.answers)
        if state.ready and self._began is None:
            self._began = trio.current_time()
            self.ready.set()
        self._on_state(self)

    async def _wake(self) -> None:
        """Whoever waits for an answer looks again."""
        async with self._news:
            self._news.notify_all()

    async def _limit(self, process: trio.Process) -> None:
        """Kills it when it does not get ready in time, or has been told to drain and does not end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(self._kill_unless, self.ready, self._plan.ready_within, process))
            await self._drain.wait()
            self._post.send_nowait(Drain(self._reason))
            await self._kill_unless(self.ended, self._ends_within, process)

    @property
    def _ends_within(self) -> float:
        """Its configuration may be a later one than the supervisor's, and give it longer."""
        return max(self._plan.end_within, self.state.ends_within if self.state is not None else 0.0)

    async def kill_if_silent(self, process: trio.Process) -> None:
        """Kills one whose loop does not turn: its lease is over by then, and its clients wait for nothing. Counted in
        looks of ours, so that a standstill of this process is not taken for one of the worker."""
        while self._quiet < self._plan.silent_within:
            await trio.sleep(TICK)
            if self._began is not None:
                self._quiet += TICK
        process.kill()

    async def _kill_unless(self, event: trio.Event, seconds: float, process: trio.Process) -> None:
        with trio.move_on_after(seconds):
            await event.wait()
            return
        process.kill()

    def _ask(self, question: ToWorker) -> None:
        """One that does not read gets no more questions: they are not answered, and in the end it is killed."""
        if self._post.statistics().current_buffer_used < UNREAD:
            self._post.send_nowait(question)
