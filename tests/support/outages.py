"""A store in memory that takes its time and can be away, for all replicas at once, at any of their operations.

    async with open_replicas(2, backend) as replicas:
        wire = Wire(replicas)
        wire.at(7, lambda: wire.break_for(4.0))      # the seventh operation from now on is not answered for 4 s

Each replica's operations are carried out in their order, and answered, a moment later. While the store is away they are
tried again, as those of Redis are: what can wait for 10 s, what can't for 1 s, and then nobody knows whether they were
carried out. Those whose answer was under way had been.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from actors.ports import Failed, Refused
from gateway.store.memory import MemoryStore
from tests.support.harness import Gateway

MOMENT = 0.001
"""Seconds to the store, and back."""
HOLD, PATIENCE = 10.0, 1.0
"""Seconds for which an operation is tried again."""

PATIENT = ("save", "touch", "release", "end", "delete", "append", "trim", "drop", "restore", "mend", "post", "withdraw")
IMPATIENT = ("create", "read", "claim", "open", "heads")
ASKED = ("alive", "replicas", "owned")
"""Of the directory, which is not asked again."""
AWAY = Failed(Refused.AWAY, "the store is away")


@dataclass(eq=False)
class _Operation:
    run: Callable[[Callable[[Any], object]], object]
    done: Callable[[Any], object]
    patience: float
    since: float = field(default_factory=trio.current_time)
    due: float = 0.0
    outcomes: list[Any] | None = None


class Wire:
    """Between replicas and the store that they have in common."""

    def __init__(self, replicas: list[Gateway]) -> None:
        self.count = 0
        """Operations since it was armed."""
        self.log: list[str] = []
        self._plans: dict[int, list[Callable[[], object]]] = {}
        self._away: set[int] = set()
        self._until = 0.0
        self._changed = trio.Event()
        self._gateways = replicas
        for number, gateway in enumerate(replicas):
            self._wrap(number, gateway)

    def at(self, number: int, act: Callable[[], object]) -> None:
        """Acts just before this one of the operations to come is begun; 1 is the next."""
        self._plans.setdefault(self.count + number, []).append(act)

    def disarm(self) -> None:
        """Nothing more happens."""
        self._plans.clear()

    def break_for(self, seconds: float, *only: int) -> None:
        """From now on it is away, for all of them or for these."""
        cut = set(only or range(len(self._gateways)))
        self._away, self._until = cut, trio.current_time() + seconds
        self.log.append(f"-- away for {cut}")
        for gateway in self._living(cut):
            gateway.store.replica.cut_off()  # type: ignore[attr-defined]

        async def back() -> None:
            await trio.sleep(seconds)
            self._away = set()
            self.log.append("-- back")
            for gateway in self._living(cut):
                gateway.store.replica.resume()  # type: ignore[attr-defined]
            self._tell()

        trio.lowlevel.spawn_system_task(back)

    def _living(self, among: set[int]) -> list[Gateway]:
        """Whose beats reach the store when it is there."""
        lives = [(self._gateways[n], self._gateways[n].life) for n in among]
        return [g for g, life in lives if life and life.running.is_set() and not life.scope.cancel_called]

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # One replica

    def _wrap(self, number: int, gateway: Gateway) -> None:
        store = gateway.store
        assert isinstance(store, MemoryStore)
        queue: list[_Operation] = []

        def wrap(name: str, patience: float) -> None:
            inner = getattr(store, name)
            signature = inspect.signature(inner)

            def outer(*args: Any, **more: Any) -> None:
                bound = signature.bind(*args, **more)
                done, owner = bound.arguments["done"], store.owner

                def run(came: Callable[[Any], object]) -> None:
                    bound.arguments["done"] = came
                    store.owner, now = owner, store.owner  # who asks does so by the name that it had
                    try:
                        inner(*bound.args, **bound.kwargs)
                    finally:
                        store.owner = now

                self._count(f"{number}.{name}")
                if name == "heads":  # each by itself
                    many = len(bound.arguments["streams"])
                    said, done = done, lambda out: said([AWAY] * many if out is AWAY else out)
                if number in self._away and not patience:
                    done(AWAY)
                    return
                queue.append(_Operation(run, done, patience or PATIENCE))
                self._tell()

            setattr(store, name, outer)

        for name in PATIENT:
            wrap(name, HOLD)
        for name in IMPATIENT:
            wrap(name, PATIENCE)
        for name in ASKED:
            wrap(name, 0.0)
        replay = store.replay

        async def slow(*args: Any) -> Any:
            self._count(f"{number}.replay")
            if number not in self._away:
                await trio.sleep(2 * MOMENT)
                if number not in self._away:
                    return await replay(*args)
            await trio.lowlevel.checkpoint()
            return AWAY

        store.replay = slow  # type: ignore[method-assign]
        gateway.nursery.start_soon(self._carry, number, queue)

    def _count(self, what: str) -> None:
        self.count += 1
        self.log.append(f"{self.count} {what} {trio.current_time():.3f}")
        for act in self._plans.pop(self.count, ()):
            act()

    async def _carry(self, number: int, queue: list[_Operation]) -> None:
        """What was asked first is carried out first."""
        while True:
            now = trio.current_time()
            for operation in list(queue):
                if number in self._away:
                    if now >= operation.since + operation.patience:
                        queue.remove(operation)
                        operation.done(AWAY)
                elif operation.outcomes is not None and now >= operation.due:
                    queue.remove(operation)
                    for outcome in operation.outcomes:
                        operation.done(outcome)
                elif operation.outcomes is None and now >= operation.since + MOMENT:
                    operation.outcomes, operation.due = [], now + MOMENT
                    operation.run(operation.outcomes.append)
            if number in self._away:
                then = min((o.since + o.patience for o in queue), default=self._until)
            else:
                then = min((o.due if o.outcomes is not None else o.since + MOMENT for o in queue), default=float("inf"))
            with trio.move_on_at(then):
                await self._changed.wait()
