"""A gateway that is one of several workers: its sockets are inherited, and who looks at it is its supervisor."""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

import msgspec
import trio

from actors.protocol.table import Limits
from actors.runtime import System
from actors.runtime.boundary import boundary
from gateway import lifecycle
from gateway.config import ConfigError, Problem, Settings
from gateway.config.settings import Address
from gateway.config.snapshot import Snapshot
from gateway.gauges import sample
from gateway.observability.exposition import process_figures
from gateway.workers.channel import (
    FRAME_MAX,
    LENGTH,
    Ask,
    Channel,
    Drain,
    FromWorker,
    Hello,
    Look,
    Reload,
    State,
    Told,
    ToWorker,
)
from gateway.workers.overview import rows, seen

if TYPE_CHECKING:
    from gateway.app import Gateway

SAY_EVERY = 0.5
"""Seconds: so much of what a killed worker had counted is missing in the sums."""
BEYOND = 5.0
"""Seconds beyond the worker's own watchdog after which it is killed."""


def open_channel(descriptor: int) -> Channel[ToWorker]:
    """The channel that this process inherited; no program that it starts does."""
    os.set_inheritable(descriptor, False)
    return Channel(socket.socket(fileno=descriptor), ToWorker)


def end_with_supervisor(descriptor: int, within: float) -> None:
    """A thread that ends this process so many seconds after its supervisor is gone, if it has not ended by then: where
    the loop does not turn nobody would drain, and nobody is left to kill it. `descriptor`: of the channel."""
    other_end = select.poll()
    other_end.register(os.dup(descriptor), 0)  # with no event asked for it waits for the hang-up alone

    def outlive() -> None:
        other_end.poll()
        time.sleep(within)
        os._exit(1)

    threading.Thread(target=outlive, name="supervisor", daemon=True).start()


def hear_hello(descriptor: int) -> Hello | None:
    """What a supervisor says first, before the loop turns; None: it is gone, or none is there."""
    end = socket.socket(fileno=os.dup(descriptor))
    with end:
        end.setblocking(True)
        try:
            length = int.from_bytes(_taken(end, LENGTH), "big")
            first = msgspec.msgpack.decode(_taken(end, length), type=ToWorker) if length <= FRAME_MAX else None
        except (OSError, EOFError, msgspec.DecodeError):
            return None
    return first if isinstance(first, Hello) else None


def _taken(end: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = end.recv(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _none() -> Settings:
    raise ConfigError([Problem("there is no configuration")])


def settings_of(config: bytes, otherwise: Callable[[], Settings]) -> Settings:
    """Those of the configuration in force, as the supervisor has read it. ConfigError."""
    if not config:
        return otherwise()
    from gateway.config.loading import load_snapshot

    return load_snapshot(Snapshot.decoded(config)).settings


def shared(settings: Settings, hello: Hello) -> Settings:
    """The settings of this worker: what all have in common comes from the supervisor."""
    keys = settings.keys or tuple(hello.keys)
    return replace(settings, listen=Address(*hello.listen, hello.path), store=hello.store, keys=keys, workers=1)


def ends_within(limits: Limits) -> float:
    """Seconds from the word to drain after which a worker with these limits is killed."""
    return lifecycle.longest_drain(limits) + BEYOND


class Working:
    """The role. `hear` runs from the start on."""

    reloadable = False

    def __init__(self, channel: Channel[ToWorker], hello: Hello) -> None:
        self._channel = channel
        self._hello = hello
        self._prepared: tuple[bytes, Settings] | None = None
        """The configuration that was looked at last."""
        self._turn = trio.Lock()
        self._say: Callable[[int], State] = lambda answers: State(ready=False, answers=answers)

    def listeners(self) -> list[socket.socket]:
        for descriptor in self._hello.listeners:
            os.set_inheritable(descriptor, False)
        return [socket.socket(fileno=descriptor) for descriptor in self._hello.listeners]

    async def begin(self, gateway: "Gateway", over: trio.Event) -> None:
        """The supervisor does that."""

    def leave(self) -> None:
        """The supervisor has them still."""

    async def hear(self, gateway: "Gateway") -> None:
        """Does what the supervisor says, and drains when it is gone; until it is cancelled."""
        async with trio.open_nursery() as asking:
            await self._hear(gateway, asking)

    async def _hear(self, gateway: "Gateway", asking: trio.Nursery) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case Look(number):
                    await self._tell(number)
                case Ask(number, what, name, options):
                    asking.start_soon(self._answer, gateway, number, what, name, options)
                case Reload():
                    asking.start_soon(self._reload, gateway, message)
                case Drain(reason):
                    gateway.stop(reason)
                case Hello():
                    continue  # there is one, and it was heard
                case _:
                    assert_never(message)
        gateway.stop("the supervisor is gone")

    async def attend(self, gateway: "Gateway", system: System) -> None:
        def say(answers: int) -> State:
            sample(gateway, system)
            readiness = gateway.readiness()
            return State(
                ready=readiness.ready,
                degraded=readiness.degraded,
                incarnation="" if gateway.actors is None else gateway.actors.services.cluster.incarnation,
                details=dict(readiness.details),
                servers=gateway.server_list(),
                numbers=rows(gateway.metrics.numbers()),
                examples=seen(gateway.metrics.examples()),
                process=process_figures(),
                answers=answers,
                ends_within=ends_within(gateway.settings.limits),
            )

        self._say = say
        gateway.log.info("serving", listen=gateway.listen)
        while not gateway.drained.is_set():
            await self._tell()
            with trio.move_on_after(SAY_EVERY):
                await gateway.drained.wait()
        await self._tell()

    async def _answer(self, gateway: "Gateway", number: int, what: str, name: str, options: dict[str, str]) -> None:
        """An operator's question that goes wrong is told so, and ends nothing here."""
        told = Told(number, 500, {"error": "internal error"})

        async def operate() -> None:
            nonlocal told
            told = Told(number, *await gateway.operate(what, name, options))

        exit = await boundary(operate)
        if exit.abnormal:
            gateway.log.error("operator_crashed", exc_info=exit.error)
        await self._send(told)

    async def _reload(self, gateway: "Gateway", message: Reload) -> None:
        """Looks whether this configuration can be used, or puts it in force. Where that can't be done after all, this
        process ends, and the next one begins with it."""
        async with self._turn:
            exit = await boundary(partial(self._prepare, message.config))
            why = str(exit.error) if exit.error is not None else ""
            if message.commit and not why and self._prepared is not None:
                why = await gateway.reconfigure(self._prepared[1])
        if message.commit and why:
            gateway.stop("its configuration is not that of the others")
        await self._send(Told(message.number, 422, {"error": why}) if why else Told(message.number, 200))

    async def _prepare(self, config: bytes) -> None:
        if self._prepared is None or self._prepared[0] != config:
            settings = await trio.to_thread.run_sync(settings_of, config, _none, abandon_on_cancel=True)
            self._prepared = config, shared(settings, self._hello)

    async def _tell(self, answers: int = 0) -> None:
        await self._send(self._say(answers))

    async def _send(self, message: FromWorker) -> None:
        try:
            await self._channel.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the supervisor is gone, which `hear` notices


def ignore_supervisors_signals() -> None:
    """What means something to the supervisor ends no worker, whoever sends it to all processes of a group."""
    for number in (signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a function: what is ignored would be so in child processes too
