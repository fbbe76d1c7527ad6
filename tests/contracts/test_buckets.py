"""How often things were done: counted once for all replicas, by the clock of the store, all at once or not at all."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.ports import Buckets, Failed
from actors.protocol.limiting import MONDAY, SECOND, UNITS, Bucket, Limit, Taken, due
from gateway.store import buckets as memory
from gateway.store.buckets import MemoryBuckets
from gateway.store.memory import MemoryStore
from gateway.store.redis import writer
from gateway.store.redis.buckets import RedisBuckets
from gateway.store.redis.operations import Operation
from gateway.store.redis.scripts import SCRIPTS
from tests.contracts.conftest import LIMITS
from tests.support.redis_server import RedisServer
from tests.support.store_calls import eventually


def bucket(key: str, most: int = 1, unit: str = "h") -> Bucket:
    limit = Limit(most, unit)
    return Bucket(key, limit.quota, most, limit.micros)


async def take(buckets: Buckets, *of: Bucket, cost: int = 1, once: str = "") -> Taken | Failed:
    found: list[Taken | Failed] = []
    taken = buckets.take(of, cost, once, 60.0, found.append)
    if taken is not None:
        return taken
    await eventually(lambda: found)
    return found[0]


def at_once(buckets: Buckets, of: Sequence[Bucket], cost: int = 1, once: str = "") -> Any:
    """The same where nothing is waited for."""
    found: list[Taken | Failed] = []
    taken = buckets.take(of, cost, once, 60.0, found.append)
    return found[0] if taken is None else taken


@dataclass
class Two:
    """The buckets as two replicas see them."""

    one: Buckets
    other: Buckets
    key: str


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.redis) for kind in ("redis", "cluster"))])
async def two(request: pytest.FixtureRequest, new_key: Callable[[], str]) -> AsyncIterator[Two]:
    if request.param == "memory":
        store = MemoryStore(LIMITS, lambda: 1000.0)
        yield Two(store.buckets, store.beside().buckets, new_key())
        return
    server = request.getfixturevalue("server" if request.param == "redis" else "cluster")
    async with AsyncExitStack() as stack:
        opened: Any = request.getfixturevalue("opened")
        stores = [await stack.enter_async_context(opened(server.url)) for _ in range(2)]
        yield Two(stores[0].buckets, stores[1].buckets, new_key())


async def test_what_one_replica_takes_is_taken_for_the_other(two: Two) -> None:
    for unit in ("h", "day", "week"):
        of = bucket(two.key + unit, 3, unit)
        assert [await take(on, of) for on in (two.one, two.other, two.one)] == [Taken()] * 3
        for on in (two.one, two.other):
            refused = await take(on, of)
            assert isinstance(refused, Taken)
            assert refused.refused == 0
            assert 0 < refused.seconds <= (1200 if unit == "h" else UNITS[unit] / SECOND)


async def test_of_several_buckets_all_give_or_none(two: Two) -> None:
    small, large = bucket(two.key + "small", 1), bucket(two.key + "large", 2)
    assert await take(two.one, large, small) == Taken()
    for _ in range(3):
        refused = await take(two.other, large, small)
        assert isinstance(refused, Taken)
        assert refused.refused == 1
    assert await take(two.one, large) == Taken()
    assert await take(two.one, large) != Taken()


async def test_the_longest_wait_of_several_is_told(two: Two) -> None:
    soon, late = bucket(two.key + "soon", 1, "min"), bucket(two.key + "late", 1, "h")
    assert await take(two.one, soon, late) == Taken()
    refused = await take(two.one, soon, late)
    assert isinstance(refused, Taken)
    assert refused.refused == 1
    assert 60 < refused.seconds <= 3600


async def test_only_one_of_many_at_once_gets_the_last_one(two: Two) -> None:
    of, got = bucket(two.key, 5, "day"), list[Taken | Failed]()

    async def one(on: Buckets) -> None:
        got.append(await take(on, of))

    async with trio.open_nursery() as nursery:
        for on in (two.one, two.other) * 10:
            nursery.start_soon(one, on)
    assert got.count(Taken()) == 5


async def test_what_was_paid_for_is_free_once(two: Two) -> None:
    of = bucket(two.key, 1)
    assert await take(two.one, of) == Taken()
    assert await take(two.other, of, once=two.key) == Taken(free=True)
    for on in (two.one, two.other):
        again = await take(on, of, once=two.key)
        assert isinstance(again, Taken)
        assert again.refused == 0


async def test_more_than_a_bucket_holds_is_never_given_and_takes_nothing(two: Two) -> None:
    for unit in ("h", "day"):
        of = bucket(two.key + unit, 2, unit)
        assert await take(two.one, of, cost=3) == Taken(0, math.inf)
        assert await take(two.one, of, cost=2) == Taken()


async def test_another_number_goes_on_where_the_former_one_was(two: Two) -> None:
    assert await take(two.one, bucket(two.key, 5, "day"), cost=4) == Taken()
    assert await take(two.one, bucket(two.key, 4, "day")) != Taken()
    assert await take(two.one, bucket(two.key, 6, "day"), cost=2) == Taken()
    rate = two.key + "rate"
    assert await take(two.one, bucket(rate, 1000, "h"), cost=1000) == Taken()
    refused = await take(two.one, bucket(rate, 1, "s"))
    assert isinstance(refused, Taken)
    assert refused.seconds <= 1.0


# The arithmetic, against a token bucket and a counter --------------------------------------------------------------


@dataclass
class Model:
    """Tokens that drop in evenly, and counts of whole windows: what is meant, in the plainest way."""

    credit: dict[str, tuple[int, int]] = field(default_factory=dict)
    counts: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(self, now: int, of: tuple[Bucket, ...], cost: int) -> bool:
        if not all(self.left(now, one) >= cost for one in of):
            return False
        for one in of:
            if one.quota:
                self.counts[one.key, self.window(now, one)] = one.most - self.left(now, one) + cost
            else:
                self.credit[one.key] = self.filled(now, one) - cost * one.micros, now
        return True

    def left(self, now: int, one: Bucket) -> int:
        if one.quota:
            return one.most - self.counts.get((one.key, self.window(now, one)), 0)
        return self.filled(now, one) // one.micros

    def filled(self, now: int, one: Bucket) -> int:
        full = one.most * one.micros
        credit, since = self.credit.get(one.key, (full, now))
        return min(full, credit + now - since)

    def window(self, now: int, one: Bucket) -> int:
        return (now - (MONDAY if one.micros == UNITS["week"] else 0)) // one.micros


START = 1_795_871_000 * SECOND
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [0, 1, 999, SECOND, 7 * SECOND, 60 * SECOND, 3599 * SECOND, 86_400 * SECOND, 6 * 86_400 * SECOND]
        ),
        st.sets(st.integers(0, 4), min_size=1),
        st.integers(1, 4),
    ),
    max_size=30,
)


def kinds(prefix: str) -> list[Bucket]:
    units = [(3, "s"), (7, "min"), (2, "h"), (5, "day"), (9, "week")]
    return [bucket(f"{prefix}{unit}", most, unit) for most, unit in units]


def follows(buckets: Buckets, tell: Callable[[int], None], steps: list[tuple[int, set[int], int]], prefix: str) -> None:
    """Takes as the model does, and what is told of waiting is true to the microsecond."""
    model, now, all_of = Model(), START, kinds(prefix)
    for passed, places, cost in steps:
        now += passed
        of = tuple(all_of[place] for place in sorted(places))
        tell(now)
        taken = at_once(buckets, of, cost)
        assert isinstance(taken, Taken)
        given = model.take(now, of, cost)
        assert (taken.refused is None) == given
        if not given:
            assert taken.refused is not None
            one = of[taken.refused]
            if taken.seconds == math.inf:
                assert cost > one.most
            else:
                later = now + round(taken.seconds * SECOND)
                assert all(model.left(later, other) >= cost for other in of)
                assert model.left(later - 1, one) < cost


@given(STEPS)
def test_the_memory_s_buckets_give_what_plain_counting_gives(steps: list[tuple[int, set[int], int]]) -> None:
    clock = [0.0]

    def tell(now: int) -> None:
        clock[0] = now / SECOND

    follows(MemoryBuckets(lambda: clock[0]), tell, steps, "k")


class AtTime:
    """Executes the function of the store on a real Redis, where it is as late as the test says."""

    def __init__(self, server: RedisServer) -> None:
        self._redis = server.client()
        text = SCRIPTS["take"].text.split("\n", 1)[1]
        text, clocks = re.subn(r"redis\.call\('TIME'\)", "redis.call('MGET', 'sd:t:s', 'sd:t:us')", text)
        text, ends = re.subn(r", 'PX', string\.format\(.*\)\)$", ")", text, flags=re.MULTILINE)
        assert (clocks, ends) == (1, 2)  # nothing ends but by that clock
        self._run = self._redis.register_script(text)

    def tell(self, now: int) -> None:
        self._redis.mset({"sd:t:s": now // SECOND, "sd:t:us": now % SECOND})

    def submit(self, operation: Operation) -> None:
        _, _, count, *rest = operation.command
        assert isinstance(count, int)
        operation.done(operation.outcome(self._run(keys=rest[:count], args=rest[count:])))


@pytest.fixture
def at_time(server: RedisServer) -> AtTime:
    return AtTime(server)


@pytest.mark.redis
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(steps=STEPS)
def test_redis_buckets_give_what_plain_counting_gives(at_time: AtTime, steps: list[tuple[int, set[int], int]]) -> None:
    follows(RedisBuckets(at_time), at_time.tell, steps, secrets.token_hex(8))


@pytest.mark.redis
def test_a_clock_that_was_ahead_holds_nobody_up_for_longer_than_an_empty_bucket(
    at_time: AtTime, new_key: Callable[[], str]
) -> None:
    """After a failover it is the clock of another machine."""
    clock, key = [0.0], new_key()

    def tell(now: int) -> None:
        at_time.tell(now)
        clock[0] = now / SECOND

    for buckets in (MemoryBuckets(lambda: clock[0]), RedisBuckets(at_time)):
        rate, quota = bucket(key + "rate", 2, "min"), bucket(key + "quota", 2, "day")
        tell(START + 86_400 * SECOND)
        assert at_once(buckets, [rate, quota], 2) == Taken()
        tell(START)
        assert at_once(buckets, [rate]) == Taken(0, 30.0)
        tell(START + 30 * SECOND)
        assert at_once(buckets, [rate]) == Taken()
        assert at_once(buckets, [quota]).refused == 0  # a quota does not begin anew when its clock is put back


# Trouble -----------------------------------------------------------------------------------------------------------


@pytest.mark.redis
async def test_what_redis_may_have_counted_is_not_tried_again(
    start_server: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 30.0)
    server = start_server()
    async with opened(f"{server.url}?socket_timeout=0.5") as store:
        of = bucket("k", 5, "day")
        assert await take(store.buckets, of) == Taken()
        server.pause()
        assert isinstance(await take(store.buckets, of), Failed)
        server.go_on()
        await eventually(lambda: store.state == "ok")
        left = [await take(store.buckets, of) for _ in range(5)].count(Taken())
        assert left in (3, 4)


@pytest.mark.redis
async def test_of_a_redis_that_is_known_to_be_away_it_is_known_at_once(
    start_server: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE", 0.2)
    server = start_server()
    async with opened(server.url) as store:
        server.kill()
        assert isinstance(await take(store.buckets, bucket("k")), Failed)
        await trio.sleep(0.3)
        assert isinstance(at_once(store.buckets, [bucket("k")]), Failed)


@pytest.mark.redis
async def test_in_redis_a_bucket_ends_when_it_is_full_again(server: RedisServer, opened: Any, new_key: Any) -> None:
    async with opened(server.url) as store:
        key, client = new_key(), server.client()
        await take(store.buckets, bucket(key, 60, "min"), bucket(key + "d", 1, "day"), cost=1, once="")
        assert 0 < client.pttl(f"sd:{{limits}}:{key}") <= 1002
        assert 0 < client.pttl(f"sd:{{limits}}:{key}d") <= 86_400_002
        await take(store.buckets, bucket(key), once=key)
        assert 0 < client.pttl(f"sd:{{limits}}:once:{key}") <= 60_000


def test_memory_forgets_what_says_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST", 100)
    monkeypatch.setattr(memory, "ROOM", 10)
    clock = [1000.0]
    buckets = MemoryBuckets(lambda: clock[0])
    used, spent = bucket("used", 50), bucket("spent", 3, "day")
    at_once(buckets, [used], 50)
    at_once(buckets, [spent], 3)
    for n in range(1000):  # somebody makes names up
        at_once(buckets, [bucket(f"r{n}", 100), bucket(f"q{n}", 2, "week")], once=f"o{n}" * (n % 2))
        assert buckets.total <= 100
    for one in (used, spent):
        assert at_once(buckets, [one]).refused == 0
    clock[0] += 8 * 86_400
    buckets.sweep()
    assert buckets.total == 0


def test_names_of_buckets_tell_who_and_what_and_nothing_of_how_much() -> None:
    limit = Limit(5, "min")
    same = {
        due("policy[0]", "a:*", limit, ("x",), "").bucket.key,
        due("policy[3]", "a:*", Limit(9, "min", 2), ("x",), "").bucket.key,
    }
    assert len(same) == 1
    others = [
        due("r", "a:*", limit, ("y",), ""),
        due("r", "a:x", limit, ("x",), ""),
        due("r", "a:*", Limit(5, "h"), ("x",), ""),
        due("r", "a:*", Limit(5, "min", per="all"), ("x",), ""),
        due("r", "a:*", limit, ("x",), "tool:a:x"),
        due("r", "a:*", limit, ("x", ""), ""),
    ]
    assert len({one.bucket.key for one in others} | same) == len(others) + 1
