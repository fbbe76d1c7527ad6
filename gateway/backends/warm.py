"""Processes of pools that are started ahead, so that who comes next need not wait for one.

Such a process has heard nothing: it is offered to the transports, and whoever takes it has it to its end. Nobody gets
it afterwards. One that ends by itself before anybody came is started again after a pause, which grows.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import trio

from actors.machines.upstream import breaker
from actors.ports import Log
from actors.protocol.table import BackendSpec, StdioTarget
from gateway.backends.guardian import Guardian
from gateway.backends.stdio import Offer, Offers, Running, StdioLimits
from gateway.wire.errors import SpawnError
from gateway.wire.process import end_group, spawn

LOOK: Final = 0.25
"""Seconds between two looks at whether one more is to be started."""
SELDOM: Final = 5.0
"""The same where there is no pool: another configuration may have one."""
SHARE: Final = 0.5
"""Of the places for child processes: as long as fewer are free, none is started ahead."""

Pools = Callable[[], Iterable[BackendSpec]]
"""The servers whose processes are started ahead, as they are configured now."""


class Warm:
    """Keeps `least` processes of each pool."""

    def __init__(
        self,
        pools: Pools,
        offers: Offers,
        *,
        guardian: Guardian,
        slots: trio.CapacityLimiter,
        log: Log,
        limits: StdioLimits,
        jitter: Callable[[], float],
    ) -> None:
        self._pools = pools
        self._offers = offers
        self._guardian = guardian
        self._slots = slots
        self._log = log
        self._limits = limits
        self._jitter = jitter
        self._kept: dict[object, tuple[StdioTarget, trio.CancelScope]] = {}
        self._failures: Counter[StdioTarget] = Counter()
        self._not_before: dict[StdioTarget, float] = {}

    async def run(self) -> None:
        """Until it is cancelled; then those that nobody took end."""
        async with trio.open_nursery() as nursery:
            while True:
                pools = {spec.target: spec for spec in self._pools() if isinstance(spec.target, StdioTarget)}
                self._drop(pools.keys())
                for target, spec in pools.items():
                    for _ in range(self._lacking(target, spec)):
                        nursery.start_soon(self._keep, spec.name, target)
                        await trio.lowlevel.checkpoint()  # it is counted once it has begun
                await trio.sleep(LOOK if pools else SELDOM)

    def _drop(self, wanted: Iterable[StdioTarget]) -> None:
        """Those of servers that are configured otherwise, or not at all."""
        wanted = set(wanted)
        for target, scope in self._kept.values():
            if target not in wanted:
                scope.cancel()
        for known in (self._failures, self._not_before):
            for target in [target for target in known if target not in wanted]:
                del known[target]

    def _lacking(self, target: StdioTarget, spec: BackendSpec) -> int:
        if trio.current_time() < self._not_before.get(target, 0.0):
            return 0
        free = int(self._slots.available_tokens - SHARE * self._slots.total_tokens)
        kept = sum(known == target for known, _ in self._kept.values())
        room = spec.most - self._offers.living[target] if spec.most else spec.least
        return max(0, min(spec.least - kept, room, free))

    async def _keep(self, name: str, target: StdioTarget) -> None:
        """One process, until somebody takes it, it ends, or is not wanted any more."""
        place, scope, offer = object(), trio.CancelScope(), None
        try:
            self._slots.acquire_on_behalf_of_nowait(place)
        except trio.WouldBlock:
            return
        self._kept[place] = target, scope
        self._offers.began(target)
        try:
            with scope:
                running = await self._start(name, target, place)
                if running is not None:
                    offer = Offer(target, running, fresh=True)
                    await self._hold(name, offer)
        finally:
            del self._kept[place]
            if offer is None or not offer.taken:  # else it is counted by whoever has it, until it ends
                self._slots.release_on_behalf_of(place)
                self._offers.ended(target)

    async def _start(self, name: str, target: StdioTarget, place: object) -> Running | None:
        try:
            await self._guardian.ready()
            child = await spawn(target, self._limits.descriptors)
        except (SpawnError, OSError) as error:
            self._failed(name, target, str(error))
            return None
        self._guardian.watch(child.pid)
        return Running(child, place, self._limits)

    async def _hold(self, name: str, offer: Offer) -> None:
        """Until the offer is over. Whoever has taken the process has it alone then."""
        child, target = offer.running.child, offer.target
        try:
            self._offers.put(offer)
            await self._until_over(offer)
            if offer.taken:
                self._failures.pop(target, None)
            else:
                self._failed(name, target, "it ended before anybody needed it")
        finally:
            self._offers.withdraw(offer)
            if offer.taken:
                offer.free.set()
            else:
                patience = self._limits.patience_cancelled
                child.close_pipes()
                with trio.move_on_after(patience.total, shield=True):
                    await end_group(child, patience)
                self._guardian.release(child.pid)

    async def _until_over(self, offer: Offer) -> None:
        async def watch() -> None:
            await offer.running.child.process.wait()
            self._offers.withdraw(offer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await offer.over.wait()
            nursery.cancel_scope.cancel()

    def _failed(self, name: str, target: StdioTarget, why: str) -> None:
        self._failures[target] += 1
        pause = breaker.delay(self._failures[target], self._jitter())
        self._not_before[target] = trio.current_time() + pause
        self._log.warning("pool_process_ended", backend=name, error=why, again=round(pause, 1))
