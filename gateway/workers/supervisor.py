"""The supervisor of workers: as many as there should be, each started again when it ends unasked, replaced one by one
on demand, drained together at the end.

It opened the listening sockets and never accepts on them: a connection that waits there is taken by whichever worker is
free, also while others start or end, so none is lost. What it does not do is carry any client's bytes.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import trio

from actors.ports import Log
from gateway.workers.backoff import Backoff
from gateway.workers.channel import State
from gateway.workers.overview import Totals
from gateway.workers.worker import Plan, Worker

LOOK_WITHIN = 1.0
"""Seconds that a question of an operator waits for workers; then it is answered by what they said last."""

DECIDE_WITHIN = 30.0
"""Seconds that workers have to say whether they can use a configuration, and again to put it in force. One that says
nothing for so long is killed for it elsewhere, and what comes in its place begins with that configuration."""

ANSWER_WITHIN = 12.0
"""Seconds that a worker has for an answer about sessions."""

OK = 200

NO_OPTIONS: Mapping[str, str] = {}


def _untold(**values: str | int) -> None:
    """There is no audit trail."""


class Supervisor:
    """`on_reaped` gets the incarnation of each worker that ended without giving it up, and must not raise. `fresh` is
    called before a rolling restart: it may have another configuration used, and returns what takes that back, or None
    if there can be no restart. `tell` hears what the audit trail is to say of processes."""

    _keeping: trio.Nursery

    def __init__(
        self,
        plan: Plan,
        log: Log,
        on_reaped: Callable[[str], Awaitable[object]],
        fresh: Callable[[], Awaitable[Callable[[], object] | None]] | None = None,
        tell: Callable[..., object] = _untold,
    ) -> None:
        self.totals = Totals()
        self.totals.living = self.states
        self.served = trio.Event()
        """A worker was ready."""
        self.stopping = trio.Event()
        self.deaths = 0
        self._plan = plan
        self._log = log
        self._on_reaped = on_reaped
        self._fresh = fresh
        self._tell_of = tell
        self._places: list[Worker | None] = [None] * plan.workers
        self._backoffs = [Backoff() for _ in self._places]
        self._workers: set[Worker] = set()
        self._rolled = trio.Event()
        self._status = 0
        self._all = trio.CancelScope()

    # What is known

    @property
    def workers(self) -> list[Worker]:
        """Those that run, the draining ones too, by place and age."""
        return sorted((worker for worker in self._workers if worker.pid), key=lambda worker: (worker.place, worker.pid))

    def states(self) -> list[State]:
        """What each of them said last."""
        return [worker.state for worker in self._workers if worker.state is not None]

    async def look(self) -> None:
        """Has all of them say how they are at this moment, as far as they answer in time."""
        with trio.move_on_after(LOOK_WITHIN):
            async with trio.open_nursery() as nursery:
                for worker in self.workers:
                    if not worker.silent:
                        nursery.start_soon(worker.look)

    async def ask(self, what: str, name: str, options: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """What a worker says to a question about sessions: that one of whose sessions a list goes on, if it is one."""
        if what == "move":
            return await self._move(name, options)
        return await self._ask(options.get("cursor", "").partition(":")[0], what, name, options)

    async def _ask(
        self, incarnation: str, what: str, name: str, options: Mapping[str, str] = NO_OPTIONS
    ) -> tuple[int, dict[str, Any]]:
        """Asks the worker of this name; any other, if there is none."""
        ready = [worker for worker in self.workers if worker.is_ready]
        ready.sort(key=lambda worker: worker.incarnation != incarnation)
        answer = None
        with trio.move_on_after(ANSWER_WITHIN):
            answer = await ready[0].ask(what, name, options) if ready else None
        return answer or (503, {"error": "no worker answers"})

    async def _move(self, name: str, options: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """From the worker that has it to that one, or to any other; what other machines have to do with, workers do."""
        to, others_say = options.get("to", ""), {name: value for name, value in options.items() if name != "to"}
        status, place = await self._ask("", "where", name)
        if status != 200:
            return status, place
        owner, key = place.get("owner") or "", str(place.get("key"))
        others = [worker.incarnation for worker in self.workers if worker.is_ready and worker.incarnation != owner]
        mine = owner in (worker.incarnation for worker in self.workers)
        if not mine or (to and to not in others):
            return await self._ask(owner if mine else to, "move", key, options)
        status, moved = await self._ask(owner, "move", key, others_say)
        if status != 200 or not others:
            return status, moved
        return await self._ask(to or others[0], "take", key, others_say)

    # What can be asked of it

    def stop(self, reason: str) -> None:
        """All of them drain, and then `run` ends."""
        self._log.info("draining", reason=reason, workers=len(self._workers))
        self._tell_of(action="drain", reason=reason)
        self.stopping.set()
        for worker in self._workers:
            worker.drain(reason)

    def kill(self) -> None:
        """Ends at once."""
        self._tell_of(action="kill")
        self._status = 1
        self._all.cancel()

    def roll(self) -> None:
        """Replaces every worker by a new one, one after the other. Asked for meanwhile, it begins once more."""
        self._rolled.set()

    async def run(self) -> int:
        """Until it is stopped and all have ended; the exit status."""
        with self._all:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_rolling)
                async with trio.open_nursery() as keeping:
                    self._keeping = keeping
                    for place in range(self._plan.workers):
                        self._start(place)
                nursery.cancel_scope.cancel()
        return self._status

    # The configuration that all of them have

    def use(self, config: bytes) -> None:
        """Workers that are started from now on begin with this configuration."""
        self._plan = replace(self._plan, hello=msgspec.structs.replace(self._plan.hello, config=config))

    async def reload(self, config: bytes) -> str:
        """Has every worker put this configuration in force, if all of them can use it; why not, if one can't."""
        refusals = await self._tell(config, commit=False)
        if refusals:
            return "; ".join(refusals)
        self.use(config)
        for failure in await self._tell(config, commit=True):
            self._log.error("configuration_not_applied", error=failure)
        return ""

    async def _tell(self, config: bytes, *, commit: bool) -> list[str]:
        """What those say that refuse. One that stands still is not waited for to look; the word that all have looked it
        hears when it goes on."""
        refusals: list[str] = []

        async def tell(worker: Worker) -> None:
            told = await worker.reload(config, commit=commit)
            if told is not None and told[0] != OK:
                refusals.append(f"worker {worker.place}: {told[1].get('error', told[0])}")

        with trio.move_on_after(DECIDE_WITHIN):
            async with trio.open_nursery() as nursery:
                for worker in [worker for worker in self._workers if not worker.draining]:
                    if commit or not worker.silent:
                        nursery.start_soon(tell, worker)
        return refusals

    # Lives

    def _start(self, place: int) -> Worker:
        worker = Worker(place, self._plan, self._said)
        self._places[place] = worker
        return self._launch(worker)

    def _launch(self, worker: Worker) -> Worker:
        self._workers.add(worker)
        self._keeping.start_soon(self._keep, worker)
        return worker

    def _said(self, worker: Worker) -> None:
        if worker.is_ready and not self.served.is_set():
            self.served.set()

    async def _keep(self, worker: Worker) -> None:
        """From the start of a worker to the start of the next one in its place, if there is to be one."""
        status = await self._run(worker)
        self._workers.discard(worker)
        if worker.state is not None:
            self.totals.ended(worker.state)
            if status != 0 and worker.state.incarnation:
                self._keeping.start_soon(self._on_reaped, worker.state.incarnation)
        if worker.draining:
            if status and self.stopping.is_set():
                self._status = self._status or 1
            self._log.info("worker_ended", worker=worker.place, pid=worker.pid, status=status)
            return
        self.deaths += 1
        why = f"signal {-status}" if status < 0 else f"status {status}"
        self._tell_of(action="died", reason=why, **({"pid": worker.pid} if worker.pid else {}))
        if not self.served.is_set():
            self._give_up(worker, status)
        elif self._places[worker.place] is worker and not self.stopping.is_set():
            await self._restart(worker, status)

    async def _run(self, worker: Worker) -> int:
        try:
            return await worker.run()
        except OSError as error:  # no more processes, or no memory for one
            self._log.error("worker_not_started", error=str(error))
            return 1

    def _give_up(self, worker: Worker, status: int) -> None:
        """None was ever ready: whatever the reason is, the next one would meet it too."""
        self._log.error("worker_failed", worker=worker.place, pid=worker.pid, status=status)
        self._status = self._status or (status if status > 0 else 1)
        self.stopping.set()
        for other in self._workers:
            other.drain("another worker failed")

    async def _restart(self, worker: Worker, status: int) -> None:
        delay = self._backoffs[worker.place].after(worker.lived)
        how = {"status": status, "lived": round(worker.lived, 1), "restart_in": delay}
        self._log.error("worker_died", worker=worker.place, pid=worker.pid, **how)
        with trio.move_on_after(delay):
            await self.stopping.wait()
        if self._places[worker.place] is worker and not self.stopping.is_set():
            self._start(worker.place)

    # Rolling restart

    async def _keep_rolling(self) -> None:
        while True:
            await self._rolled.wait()
            self._rolled = trio.Event()
            outcome = "done" if await self._roll() else "refused"
            self._tell_of(action="roll", outcome=outcome)

    async def _roll(self) -> bool:
        """Whether all are new now."""
        self._log.info("rolling_restart", workers=self._plan.workers)
        take_back = await self._fresh() if self._fresh is not None else str
        if take_back is None:
            self._log.error("rolling_restart_failed", hint="the workers that run go on")
            return False
        for place in range(self._plan.workers):
            if self.stopping.is_set():
                return False
            fresh = Worker(place, self._plan, self._said)
            self._launch(fresh)
            await fresh.ready.wait()
            if fresh.ended.is_set() or self.stopping.is_set():
                take_back()
                hint = "the workers that run go on"
                self._log.error("rolling_restart_failed", worker=place, pid=fresh.pid, hint=hint)
                return False
            former, self._places[place] = self._places[place], fresh
            if former is not None and not former.ended.is_set():
                former.drain("replaced")
                await former.ended.wait()
        self._log.info("rolling_restart_done")
        return True
