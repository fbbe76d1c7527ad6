"""One process at a time on a store, and its sessions after it died."""

import json
import signal
import sys
import time

import pytest
import trio

from actors.ports import NO_DELTAS, Failed, Refused
from gateway.store.redis import StoreInUse, lease
from gateway.store.redis import store as store_module
from tests.support.store_calls import eventually

pytestmark = pytest.mark.redis

CRASHING = """
import sys
import trio
from actors.ports import NO_DELTAS
from actors.protocol.table import Limits
from gateway.store.redis import lease, open_redis_store
from tests.support.store_calls import Lines, ask

async def main(url, key):
    async with open_redis_store(url, Limits(), log=Lines(), on_lost=print) as store:
        grant = await ask(store.create, key, {"state": b"old"})
        await ask(store.save, key, grant, 1, NO_DELTAS)
        await ask(store.open, key, grant, "p1", {"r1": b"q"}, b"one")
        await ask(store.append, key, grant, "p1", 2, [b"two"])
        print(grant.owner, grant.epoch, flush=True)
        await trio.sleep_forever()

lease.TTL = float(sys.argv[3])
trio.run(main, *sys.argv[1:3])
"""


@pytest.fixture
def brief(monkeypatch):
    """Leases that run out soon, and waits to match."""
    monkeypatch.setattr(lease, "TTL", 0.6)
    monkeypatch.setattr(lease, "EVERY", 0.1)
    monkeypatch.setattr(lease, "TWICE", 0.1)
    monkeypatch.setattr(store_module, "WAIT_FOR_LEASE", 0.9)


@pytest.fixture
def own_server(start_server):
    """A server of its own, since these tests are about who is alone on it."""
    return start_server()


async def test_a_second_process_waits_and_then_refuses_and_says_who_holds_the_store(brief, own_server, opened):
    async with opened(own_server.url) as first:
        began = trio.current_time()
        with pytest.raises(StoreInUse, match="Stop that one, or give this one a database of its own") as error:
            async with opened(own_server.url):
                pass
        assert trio.current_time() - began >= 0.9
        assert first.owner in str(error.value)
        assert f"{own_server.port}/0 is held by another Stagedoor" in str(error.value)
    async with opened(own_server.url + "?db=1"), opened(own_server.url):
        pass


async def test_who_ends_properly_gives_the_lease_up_at_once(own_server, opened):
    for _ in range(3):
        with trio.fail_after(2):
            async with opened(own_server.url):
                pass
    with own_server.client() as client:
        assert client.keys("sd:r:*") == []
        assert client.zcard("sd:c:{c}:replicas") == 0


async def test_a_second_process_starts_when_the_first_one_ends_while_it_waits(brief, own_server, opened):
    started = trio.Event()

    async def second() -> None:
        async with opened(own_server.url):
            started.set()

    async with trio.open_nursery() as nursery:
        async with opened(own_server.url):
            nursery.start_soon(second)
            await trio.sleep(0.3)
            assert not started.is_set()
        with trio.fail_after(2):
            await started.wait()


async def test_of_two_that_start_at_once_one_gets_the_store(brief, own_server, opened):
    outcomes: list[str] = []

    async def start() -> None:
        try:
            async with opened(own_server.url):
                outcomes.append("held")
                await trio.sleep(1.5)
        except* StoreInUse:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(start)
    assert sorted(outcomes) == ["held", "refused", "refused"]


async def test_a_process_that_starts_after_its_predecessor_was_killed_claims_its_sessions(
    brief, own_server, opened, ask, new_key
):
    key = new_key()
    arguments = [sys.executable, "-c", CRASHING, own_server.url, key, "0.6"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(lambda **kw: trio.run_process(arguments, capture_stdout=False, check=False, **kw))
        with own_server.client() as client:
            await eventually(lambda: client.xlen(f"sd:{{{key}}}:l:p1") == 2)
        process.send_signal(signal.SIGKILL)
    async with opened(own_server.url) as store:
        found = await ask(store.read, key)
        assert found.owner != store.owner
        grant, record = await ask(store.claim, key, found.owner, found.epoch, "n")
        assert (grant.owner, record.fields, record.requests) == (store.owner, {"state": b"old"}, {"r1": b"q"})
        assert grant.epoch > found.epoch
        assert await ask(store.append, key, grant, "p1", 3, [b"three"], finish=True) is None
        replay = await store.replay(key, "p1", found.epoch, 1, 10)
        assert [entry.data for entry in replay.entries] == [b"two", b"three"]


async def test_a_claim_against_a_living_owner_is_fenced_and_against_a_dead_one_takes_two_readings(
    own_server, opened, ask, new_key
):
    async with opened(own_server.url) as store:
        key, other = new_key(), "0123456789abcdef"
        grant = await ask(store.create, key, {})
        with own_server.client() as client:
            client.hset(f"sd:{{{key}}}:s", "owner", other)
            client.set(f"sd:r:{{{other}}}:alive", "x")
            outcome = await ask(store.claim, key, other, grant.epoch, "n")
            assert outcome == Failed(Refused.FENCED, "the owner is alive")
            client.delete(f"sd:r:{{{other}}}:alive")
        began = trio.current_time()
        claimed, _ = await ask(store.claim, key, other, grant.epoch, "n")
        assert trio.current_time() - began >= 0.45
        assert claimed.owner == store.owner


async def test_whether_a_stranger_lives_is_not_known_while_redis_is_away(own_server, opened, ask, new_key):
    async with opened(own_server.url) as store:
        own_server.kill()
        assert (await ask(store.claim, new_key(), "0123456789abcdef", 1, "n")).reason is Refused.AWAY


async def test_a_lapsed_process_takes_another_name_and_claims_from_its_own_former_one_at_once(
    brief, own_server, opened, ask, new_key
):
    async with opened(own_server.url) as store:
        key = new_key()
        grant = await ask(store.create, key, {"state": b"mine"})
        await ask(store.save, key, grant, 1, NO_DELTAS)
        with own_server.client() as client:
            client.delete(f"sd:r:{{{grant.owner}}}:alive")
            await eventually(lambda: store.owner != grant.owner)
            assert client.exists(f"sd:r:{{{store.owner}}}:alive")
            assert client.zrange("sd:c:{c}:replicas", 0, -1) == [store.owner.encode()]
        claimed, record = await ask(store.claim, key, grant.owner, grant.epoch, "n")
        assert (claimed.owner, record.fields) == (store.owner, {"state": b"mine"})
        assert (await ask(store.touch, key, grant)).reason is Refused.FENCED


async def test_a_lapsed_process_that_finds_another_one_is_told_that_it_lost_the_store(brief, own_server, opened):
    lost: list[str] = []
    async with opened(own_server.url, on_lost=lost.append) as store:
        with own_server.client() as client:
            client.set("sd:r:{feedfeedfeedfeed}:alive", json.dumps({"host": "elsewhere", "pid": 7}))
            client.zadd("sd:c:{c}:replicas", {"feedfeedfeedfeed": 1})
            client.delete(f"sd:r:{{{store.owner}}}:alive")
        await eventually(lambda: lost)
    assert lost == [
        "the lease ran out, and another process took the store: process 7 on elsewhere (incarnation feedfeedfeedfeed)"
    ]


async def test_a_loop_that_stands_still_lets_its_lease_run_out(brief, own_server, opened, monkeypatch):
    monkeypatch.setattr(lease, "TICK_WITHIN", 0.2)
    monkeypatch.setattr(store_module, "TICK", 0.05)
    async with opened(own_server.url) as store:
        before = store.owner
        time.sleep(1.2)
        with own_server.client() as client:
            assert not client.exists(f"sd:r:{{{before}}}:alive")
        await eventually(lambda: store.owner != before)


async def test_a_busy_loop_keeps_its_lease(brief, own_server, opened):
    async with opened(own_server.url) as store:
        before = store.owner
        until = trio.current_time() + 1.0
        while trio.current_time() < until:
            time.sleep(0.05)
            await trio.lowlevel.checkpoint()
        assert store.owner == before
        assert store.lease_age() < 0.6


async def test_a_thread_that_crashes_is_told(own_server, opened, monkeypatch):
    lost: list[str] = []

    class Bug(float):
        def __lt__(self, _: object) -> bool:
            raise ZeroDivisionError("a bug")

    async with opened(own_server.url, on_lost=lost.append):
        monkeypatch.setattr(lease, "TICK_WITHIN", Bug())
        await eventually(lambda: lost)
    assert lost == ["the store's lease thread crashed: crashed: ZeroDivisionError('a bug')"]
