"""Replicas, backends and Redis are killed, stopped and drained under the hands of fifty sessions; the checker reads
what everybody wrote down. `CHAOS_SEED=n` plays a run again, as far as processes can.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.chaos import checker, plan
from tests.chaos.client import Client, manners
from tests.chaos.ground import SDKS, TOKENS, Ground
from tests.chaos.nginx import executable
from tests.chaos.plan import Trouble
from tests.chaos.story import Story
from tests.support.processes import Programs, need
from tests.support.redis_server import RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

SESSIONS = 42
"""Of raw clients; eight more are on SDKs."""
CALLS, KILLS = 2000, 20
LONG = 600.0
"""Seconds of the long run."""
REPLICAS = int(os.environ.get("CHAOS_REPLICAS", "3"))
TICK, LATE = 0.05, 0.2
"""Seconds: how often the clients' process looks at the clock, and how late it may be without that being a stall."""


async def metronome(story: Story) -> None:
    """Writes down when this process stood still: who waits here waited for the machine."""
    while True:
        began = time.monotonic()
        await trio.sleep(TICK)
        if time.monotonic() - began > TICK + LATE:
            story.stalls.append((began, time.monotonic()))


async def run(ground: Ground, troubles: Sequence[Trouble], seed: int) -> None:
    """All troubles, while everybody calls; then all that is under way comes to its end, and everybody is served."""
    story, chance = ground.story, random.Random(seed)
    port = await ground.start()
    print(f"slowness {story.slowness:.2f}")
    over = trio.Event()
    async with trio.open_nursery() as helpers:
        helpers.start_soon(metronome, story)
        kinds = manners(TOKENS)
        clients = [
            Client(f"c{n}", port, kinds[n % len(kinds)], story, random.Random(chance.random()), helpers)
            for n in range(SESSIONS)
        ]
        sdks = ground.start_sdks(port, seed)
        async with trio.open_nursery() as callers:
            for client in clients:
                callers.start_soon(client.live, over)
            async with trio.open_nursery() as repairs:
                end = trio.current_time() + LONG  # the machine may be too slow for all of them
                for trouble in troubles:
                    if trio.current_time() > end:
                        break
                    await trio.sleep(trouble.after * story.pace)
                    await ground.bring(trouble, repairs)
            while len(story.calls) < CALLS * 1.1:
                await trio.sleep(0.5)
            over.set()
            for sdk in sdks:
                callers.start_soon(trio.to_thread.run_sync, sdk.stop)
        async with trio.open_nursery() as callers:
            for client in clients:
                callers.start_soon(client.last, 60 * story.slowness)
        helpers.cancel_scope.cancel()
    story.notes += ground.notes()
    story.sdk_calls += ground.sdk_calls()


def play(programs: Programs, folder: Path, troubles: Sequence[Trouble], seed: int) -> None:
    need(installed(), "redis-server is")
    need(executable() is not None, "nginx is")
    need(all(python.exists() for python, *_ in SDKS), "the SDKs of tests/sdks are")
    story = Story()
    began = time.monotonic()
    with RedisServer(aof=True) as redis:
        ground = Ground(programs, redis, folder, story, REPLICAS)
        try:
            trio.run(run, ground, troubles, seed)
        finally:
            (folder / "losses.txt").write_text("\n".join(map(repr, story.losses)))
    share, total = checker.results(story)
    print(f"seed {seed}: {total} requests, {share:.1%} with a result, {ground.kills} kills, ", end="")
    print(f"{time.monotonic() - began:.0f} s, {sum(end - begin for begin, end in story.stalls):.1f} s of stalls")
    print(Counter(ending(call) for call in story.calls).most_common(20))
    print("on SDKs:", Counter(f"{call.who[:-1]} {call.outcome}" for call in story.sdk_calls).most_common())
    wrong = checker.judge(story)
    if REPLICAS == 1:  # nobody is there to serve what one process misses
        wrong = [line for line in wrong if not line.startswith("enough_results")]
    (folder / "wrong.txt").write_text("\n".join(wrong))
    assert not wrong, f"CHAOS_SEED={seed}: {len(wrong)} wrong:\n" + "\n".join(wrong[:60])
    assert ground.kills >= KILLS
    assert total >= CALLS


def ending(call: checker.Call) -> str:
    if call.result is not None:
        return "result"
    if call.error is not None:
        data = call.error.get("data") or {}
        return f"error {call.error.get('code')} {data.get('reason')} {data.get('executed')}"
    if call.refusal is not None:
        return f"refused {call.refusal.status}"
    return "broken"


def the_seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or secrets.randbelow(10**6))


def test_sessions_outlive_whatever_holds_them(programs: Programs, tmp_path: Path) -> None:
    seed = the_seed()
    print(f"CHAOS_SEED={seed}")
    play(programs, tmp_path, plan.short(seed), seed)


@pytest.mark.chaos
def test_sessions_outlive_whatever_holds_them_for_ten_minutes(programs: Programs, tmp_path: Path) -> None:
    seed = the_seed()
    print(f"CHAOS_SEED={seed}")
    play(programs, tmp_path, plan.long(seed, LONG), seed)
