"""What the actor runtime costs, and which way of running actors on demand is the cheaper one.

    python loadtest/runtime_bench.py [--json FILE]

Each scenario runs with the runtime's dispatcher (one task for all actors) and with a trio task for each burst, which is
the alternative that `docs/decisions/actors-run-on-demand.md` weighs. Times are CPU µs of this process, the median of
several rounds; nothing is asserted. It takes some 20 seconds.
"""

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).parent.parent))

from actors.runtime import Actor, Ref, Reply, System, boundary, open_system
from actors.runtime.dispatcher import Dispatcher, Runnable

ROUNDS = 5


class TaskPerBurst(Dispatcher):
    """The alternative: every burst gets a trio task of its own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = nursery

    def schedule(self, runnable: Runnable) -> None:
        self._nursery.start_soon(self._burst, runnable)

    @staticmethod
    async def _burst(runnable: Runnable) -> None:
        runnable.burst()


@asynccontextmanager
async def system_with(dispatcher: str) -> AsyncIterator[System]:
    async with open_system() as system:
        if dispatcher == "task per burst":
            system.dispatcher = TaskPerBurst(system.nursery)
        yield system


class Echo(Actor):
    def receive(self, message: tuple[Reply, Any]) -> None:
        reply, value = message
        reply.answer(value)


class Ring(Actor):
    """Passes a number on, one less, until it is 0."""

    def __init__(self, done: trio.Event) -> None:
        self.done = done
        self.next: Ref | None = None

    def receive(self, number: int) -> None:
        if number == 0 or self.next is None:
            self.done.set()
        else:
            self.next.cast(number - 1)


class Counter(Actor):
    """Counts down over all its kind."""

    left = 0
    done: trio.Event

    def receive(self, message: object) -> None:
        Counter.left -= 1
        if Counter.left == 0:
            Counter.done.set()


class Idler(Actor):
    """Has an idle timer that every message sets anew."""

    def receive(self, reply: Reply) -> None:
        self.ctx.set_timer("idle", 1800.0, "idle")
        reply.answer(None)


def with_value(reply: Reply) -> tuple[Reply, int]:
    return (reply, 1)


async def calls_in_sequence(system: System) -> int:
    ref, times = system.spawn(Echo()), 10_000
    for _ in range(times):
        await ref.call(with_value)
    return times


async def calls_of_64_callers(system: System) -> int:
    refs, times = [system.spawn(Echo()) for _ in range(64)], 200

    async def caller(ref: Ref) -> None:
        for _ in range(times):
            await ref.call(with_value)

    async with trio.open_nursery() as nursery:
        for ref in refs:
            nursery.start_soon(caller, ref)
    return 64 * times


async def calls_that_set_a_timer(system: System) -> int:
    ref, times = system.spawn(Idler()), 10_000
    for _ in range(times):
        await ref.call(lambda reply: reply)
    return times


async def hops_round_a_ring(system: System) -> int:
    done, hops = trio.Event(), 50_000
    actors = [Ring(done) for _ in range(1000)]
    refs = [system.spawn(actor) for actor in actors]
    for actor, ref in zip(actors, refs[1:] + refs[:1], strict=True):
        actor.next = ref
    refs[0].cast(hops)
    await done.wait()
    return hops


async def casts_to_1000_actors(system: System) -> int:
    refs, each = [system.spawn(Counter()) for _ in range(1000)], 10
    Counter.left, Counter.done = each * len(refs), trio.Event()
    for _ in range(each):
        for ref in refs:
            ref.cast(None)
        await trio.lowlevel.checkpoint()
    await Counter.done.wait()
    return each * len(refs)


async def casts_to_one_actor(system: System) -> int:
    ref, rounds, batch = system.spawn(Counter()), 100, 200
    for _ in range(rounds):
        Counter.left, Counter.done = batch, trio.Event()
        for _ in range(batch):
            ref.cast(None)
        await Counter.done.wait()
    return rounds * batch


SCENARIOS: dict[str, Callable[[System], Awaitable[int]]] = {
    "call, one caller": calls_in_sequence,
    "call, 64 callers": calls_of_64_callers,
    "call, idle timer set anew": calls_that_set_a_timer,
    "hop in a ring of 1000": hops_round_a_ring,
    "cast to 1000 actors": casts_to_1000_actors,
    "cast to one actor": casts_to_one_actor,
}


async def cost(scenario: Callable[[System], Awaitable[int]], dispatcher: str) -> float:
    """CPU µs of one operation."""
    rounds = []
    for _ in range(ROUNDS):
        async with system_with(dispatcher) as system:
            await trio.testing.wait_all_tasks_blocked()
            start = time.process_time()
            operations = await scenario(system)
            rounds.append((time.process_time() - start) / operations * 1e6)
    return statistics.median(rounds)


async def lag(dispatcher: str) -> dict[str, float]:
    """How late (ms) a task that sleeps 5 ms wakes while 200 actors keep sending to each other."""
    lags = []
    async with system_with(dispatcher) as system:
        done = trio.Event()
        actors = [Ring(done) for _ in range(200)]
        refs = [system.spawn(actor) for actor in actors]
        for actor, ref in zip(actors, refs[1:] + refs[:1], strict=True):
            actor.next = ref
        for ref in refs:
            ref.cast(10**9)
        for _ in range(100):
            start = time.perf_counter()
            await trio.sleep(0.005)
            lags.append((time.perf_counter() - start - 0.005) * 1e3)
    return {"p50": statistics.median(lags), "max": max(lags)}


async def idle_actors(number: int) -> dict[str, float]:
    """What so many actors weigh once they have answered a call and are idle."""

    class Small(Echo):
        __slots__ = ("ctx",)

    async with open_system() as system:
        gc.collect()
        tracemalloc.start()
        refs = [system.spawn(Small()) for _ in range(number)]
        for ref in refs:
            await ref.call(with_value)
        gc.collect()
        weight = tracemalloc.get_traced_memory()[0] / number / 1024
        tracemalloc.stop()
        start = time.perf_counter()
        gc.collect()
        pause = (time.perf_counter() - start) * 1e3
    return {"KiB each": weight, "full gc.collect ms": pause}


async def parts() -> dict[str, float]:
    """What single things cost, in CPU µs."""

    async def nothing() -> None:
        pass

    async with open_system() as system:
        times = 20_000
        found: dict[str, float] = {}
        start = time.process_time()
        for _ in range(times):
            await boundary(nothing)
        found["boundary"] = (time.process_time() - start) / times * 1e6
        start = time.process_time()
        for _ in range(times):
            system.timers.cancel(system.timers.start(2.0, dict))
        found["timer started and cancelled"] = (time.process_time() - start) / times * 1e6
        start = time.process_time()
        for _ in range(times):
            await trio.lowlevel.checkpoint()
        found["trio checkpoint, for scale"] = (time.process_time() - start) / times * 1e6
        start = time.process_time()
        for _ in range(2000):
            system.spawn(Echo())
        found["spawn"] = (time.process_time() - start) / 2000 * 1e6
    return found


async def measure() -> dict[str, Any]:
    kinds = ("dispatcher", "task per burst")
    return {
        "µs": {name: {kind: await cost(scenario, kind) for kind in kinds} for name, scenario in SCENARIOS.items()},
        "lag ms under 200 busy actors": {kind: await lag(kind) for kind in kinds},
        "idle actors": {str(number): await idle_actors(number) for number in (10_000, 50_000)},
        "parts µs": await parts(),
    }


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return round(value, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    path = parser.parse_args().json
    results = rounded(trio.run(measure))
    text = json.dumps(results, indent=2, ensure_ascii=False)
    print(text)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
