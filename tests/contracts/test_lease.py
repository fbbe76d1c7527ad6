"""The lease of one replica among many on a real Redis: processes that die, stand still and wake, and a Redis that is
away or forgets. What both stores promise is in `test_cluster`."""

import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager, closing
from itertools import count
from types import SimpleNamespace

import pytest
import trio
from redis.crc import key_slot

from actors.machines.cluster import lease as machine
from actors.ports import NO_DELTAS, Failed, Refused
from gateway.store.redis import StoreKeysDiffer, directory, keys
from gateway.store.redis import lease as lease_module
from gateway.store.redis import store as store_module
from gateway.store.redis.links import History, anew, open_link
from gateway.store.redis.targets import parse
from tests.support.patience import PATIENCE
from tests.support.redis_cluster import SLOTS, RedisCluster
from tests.support.redis_server import MISSING, installed
from tests.support.store_calls import Lines, eventually, refused

pytestmark = pytest.mark.redis

REPLICA = """
import sys
import time
skew = float(sys.argv[4])
wall = time.time
time.time = lambda: wall() + skew
import trio
from actors.machines.cluster import lease
from actors.ports import NO_DELTAS
from actors.protocol.table import Limits
from gateway.store.redis import open_redis_store
from tests.support.store_calls import Lines, ask

lease.TTL, lease.DOUBT, lease.EVERY = 1.5, 1.0, 0.2

async def main(url, key):
    async with open_redis_store(url, Limits(), log=Lines(), on_lost=print) as store:
        grant = await ask(store.create, key, {"state": b"old"})
        await ask(store.save, key, grant, 1, NO_DELTAS)
        await ask(store.open, key, grant, "p1", {"r1": b"q"}, b"one")
        await ask(store.append, key, grant, "p1", 2, [b"two"])
        if sys.argv[3] == "late":
            await ask(store.append, key, grant, "p1", 3, [b"late"])
        print(grant.owner, flush=True)
        if skew:
            await trio.sleep(1)
            print(store.now(), flush=True)
        while True:
            # As an actor would that does not look at its lease: the fence alone protects what moved on.
            outcome = await ask(store.append, key, grant, "p1", 3, [b"late"]) if sys.argv[3] == "late" else None
            if store.owner != grant.owner:
                print("renamed", outcome.reason.value if outcome else "", flush=True)
                break
            await trio.sleep(0.05)
        await trio.sleep_forever()

trio.run(main, *sys.argv[1:3])
"""


@pytest.fixture
def brief(monkeypatch):
    """Leases that run out soon."""
    for name, seconds in (("TTL", 1.5), ("EVERY", 0.2), ("DOUBT", 1.0)):
        monkeypatch.setattr(machine, name, seconds)
    monkeypatch.setattr(directory, "WATCH", 0.3)
    monkeypatch.setattr(directory, "TWICE", 0.2)


@pytest.fixture
def own_server(start_server):
    """A server of its own, since these tests are about who else is on it."""
    return start_server()


@pytest.fixture
def client_of(own_server):
    with own_server.client() as client:
        yield client


class Heard:
    """A listener that writes down what it is told."""

    def __init__(self, store):
        self.down: list[str] = []
        self.renamed: list[tuple[str, str]] = []
        self.certain = self.losses = 0
        store.subscribe(self)

    def on_mail(self, letters):
        pass

    def on_renamed(self, former, now):
        self.renamed.append((former, now))

    def on_loss(self):
        self.losses += 1

    def on_certain(self):
        self.certain += 1

    def on_down(self, incarnation):
        self.down.append(incarnation)


class Process:
    """A replica in a process of its own, with one session."""

    def __init__(self, process):
        self.process = process
        self._lines = iter(())
        self._rest = b""

    async def line(self):
        with trio.fail_after(PATIENCE):
            while b"\n" not in self._rest:
                self._rest += await self.process.stdout.receive_some()
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def send(self, number):
        self.process.send_signal(number)


@asynccontextmanager
async def running(url, key, *, late=False, skew=0.0):
    arguments = [sys.executable, "-c", REPLICA, url, key, "late" if late else "", str(skew)]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            lambda **kw: trio.run_process(arguments, stdin=b"", stdout=-1, capture_stdout=False, check=False, **kw)
        )
        yield Process(process)
        process.kill()


async def a_session(ask, store, key):
    grant = await ask(store.create, key, {"state": b"mine"})
    assert await ask(store.save, key, grant, 1, NO_DELTAS) is None
    return grant


# Beginning and end --------------------------------------------------------------------------------------------


async def test_replicas_that_start_at_once_all_live(own_server, opened, ask):
    seen: list[int] = []

    async def start() -> None:
        async with opened(own_server.url) as store:
            with trio.fail_after(PATIENCE):
                while sum(replica.alive for replica in await ask(store.replicas)) < 3:
                    await trio.sleep(0.02)
            seen.append(len({replica.incarnation for replica in await ask(store.replicas)}))
            while len(seen) < 3:
                await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(start)
    assert seen == [3, 3, 3]


async def test_a_replica_can_be_mailed_before_it_is_seen(own_server, opened, client_of, monkeypatch):
    """The group is there before the sign of life, else a letter could be posted that nobody can be sure of."""
    async with opened(own_server.url) as store:
        name = store.incarnation
        [group] = client_of.xinfo_groups(keys.inbox_key(name))
        assert (group["name"], group["last-delivered-id"]) == (b"g", b"0-0")
        client_of.hset(keys.seen_key(name), "other", "1")
        for key in (keys.inbox_key(name), keys.seen_key(name)):
            client_of.expire(key, 20)
            await eventually(lambda key=key: client_of.ttl(key) > 100)
        info = json.loads(client_of.get(keys.alive_key(name)))
        assert info["pid"] == os.getpid()
        assert info["schema"] == [1, 1]


async def test_who_ends_properly_leaves_nothing_that_lasts(own_server, opened, client_of, ask, new_key):
    for _ in range(3):
        async with opened(own_server.url) as store:
            key = new_key()
            grant = await a_session(ask, store, key)
            assert await ask(store.release, key, grant) is None
    assert client_of.keys("sd:r:*:alive") == client_of.keys("sd:r:*:owned") == []
    assert client_of.zcard(keys.REPLICAS) == 0
    assert all(0 < client_of.ttl(key) <= 120 for key in client_of.keys("sd:r:*"))


async def test_who_ends_properly_is_listed_as_long_as_it_has_left_something(
    own_server, opened, client_of, ask, new_key
):
    async with opened(own_server.url) as store:
        key = new_key()
        grant = await a_session(ask, store, key)
        assert await ask(store.release, key, grant, work=True) is None
    assert client_of.zrange(keys.REPLICAS, 0, -1, withscores=True) == [[store.owner.encode(), 0.0]]
    async with opened(own_server.url) as other:
        heard = Heard(other)
        await eventually(lambda: heard.down)
        assert heard.down == [store.owner]
        assert await ask(other.owned, store.owner, 0) == ([key], 0)
        other.disown(store.owner, [key])
        await eventually(lambda: client_of.zrange(keys.REPLICAS, 0, -1) == [other.owner.encode()])


async def test_who_was_seen_to_end_is_found_dead_at_once(own_server, opened, client_of, ask, new_key, monkeypatch):
    """By a supervisor that says so; two readings, and a lease of one's own that is old enough, are not needed."""
    monkeypatch.setattr(directory, "TWICE", 3600.0)
    name, key = "0123456789abcdef", new_key()
    client_of.set(keys.alive_key(name), "{}", px=60_000)
    client_of.zadd(keys.REPLICAS, {name: 1})
    async with opened(own_server.url) as store:
        heard, grant = Heard(store), await a_session(ask, store, key)
        client_of.hset(f"sd:{{{key}}}:s", "owner", name)
        await eventually(lambda: name in store.directory.known)
        for command in lease_module.ended(name):
            client_of.execute_command(*command)
        await eventually(lambda: heard.down)
        assert heard.down == [name]
        assert await ask(store.alive, name) is False
        claimed, _ = await ask(store.claim, key, name, grant.epoch, "n")
        assert claimed.owner == store.owner


# Death --------------------------------------------------------------------------------------------------------


async def test_what_a_killed_process_owned_is_found_and_claimed(brief, own_server, opened, ask, new_key):
    key = new_key()
    async with opened(own_server.url) as store, running(own_server.url, key) as process:
        heard, dead = Heard(store), await process.line()
        await eventually(lambda: dead in store.directory.known)
        process.send(signal.SIGKILL)
        found = await ask(store.read, key)
        assert refused(await ask(store.claim, key, dead, found.epoch, "n")) is Refused.FENCED
        await eventually(lambda: heard.down)
        assert heard.down == [dead]
        assert await ask(store.owned, dead, 0) == ([key], 0)
        grant, record = await ask(store.claim, key, found.owner, found.epoch, "n")
        assert (grant.owner, record.fields, record.requests) == (store.owner, {"state": b"old"}, {"r1": b"q"})
        assert grant.epoch > found.epoch
        assert await ask(store.append, key, grant, "p1", 3, [b"three"], finish=True) is None
        replay = await store.replay(key, "p1", found.epoch, 1, 10)
        assert [entry.data for entry in replay.entries] == [b"two", b"three"]
        store.disown(dead, [key])
        assert await ask(store.owned, dead, 0) == ([], 0)
        assert [replica.incarnation for replica in await ask(store.replicas)] == [store.owner]


async def test_whatever_a_killed_process_left_expires(own_server, opened, client_of, ask, new_key):
    """But for the list of those that were seen, from which the others strike it, and what all have in common."""
    async with running(own_server.url, new_key()) as process:
        name = await process.line()
        async with opened(own_server.url) as store:
            await ask(store.post, name, b"x" * 100_000)  # its text lies beside the inbox
            await eventually(lambda: client_of.pttl(f"sd:r:{{{name}}}:owned") > 0)  # with its next beat
            process.send(signal.SIGKILL)
            left = {key.decode() for key in client_of.keys("*")}
            mine = {key for key in left if name in key}
            assert {key.rpartition(":")[2] for key in mine} >= {"owned", "in"}
            for key in left - {"sd:c:{c}:replicas", "sd:c:{c}:sealing"}:
                assert 0 < client_of.pttl(key) <= 86_400_000, key


async def test_who_starts_later_hears_of_a_death_that_left_sessions(brief, own_server, opened, client_of, new_key):
    key = new_key()
    async with running(own_server.url, key) as process:
        dead = await process.line()
        process.send(signal.SIGKILL)
    client_of.zadd(keys.REPLICAS, {"feedfeedfeedfeed": 1})  # one that had nothing
    async with opened(own_server.url) as store:
        heard = Heard(store)
        await eventually(lambda: heard.down)
        assert heard.down == [dead]
        assert client_of.zrange(keys.REPLICAS, 0, -1) == [dead.encode(), store.owner.encode()]


async def test_a_stopped_process_loses_its_sessions_and_wakes_as_another(brief, own_server, opened, ask, new_key):
    key = new_key()
    async with opened(own_server.url) as store, running(own_server.url, key, late=True) as process:
        heard, before = Heard(store), await process.line()
        await eventually(lambda: before in store.directory.known)
        process.send(signal.SIGSTOP)
        await eventually(lambda: heard.down)
        found = await ask(store.read, key)
        grant, _ = await ask(store.claim, key, before, found.epoch, "n")
        process.send(signal.SIGCONT)
        assert await process.line() == "renamed fenced"
        record = await ask(store.read, key)
        assert (record.owner, record.epoch) == (store.owner, grant.epoch)
        # Event 3 was written before it was stopped, once; and nothing after.
        assert record.streams["p1"].seq == 3
        alive = [replica.incarnation for replica in await ask(store.replicas) if replica.alive]
        assert len(alive) == 2
        assert before not in alive
        assert heard.down == [before]


async def test_a_process_that_is_stopped_for_a_moment_keeps_its_name(brief, own_server, opened, ask, new_key):
    key = new_key()
    async with opened(own_server.url) as store, running(own_server.url, key) as process:
        heard, name = Heard(store), await process.line()
        process.send(signal.SIGSTOP)
        await trio.sleep(0.4)
        process.send(signal.SIGCONT)
        await trio.sleep(2)
        assert await ask(store.alive, name) is True
        assert heard.down == []


async def test_clocks_that_differ_by_a_day_make_no_difference(brief, own_server, opened, ask, new_key):
    key, mine = new_key(), new_key()
    async with opened(own_server.url) as store, running(own_server.url, key, skew=-86_400) as process:
        heard, other = Heard(store), await process.line()
        grant = await a_session(ask, store, mine)
        await trio.sleep(3)
        with own_server.client() as client:
            assert abs(client.time()[0] - store.now()) < 10
        assert abs(float(await process.line()) - store.now()) < 10
        assert heard.down == []
        assert await ask(store.alive, other) is True
        record = await ask(store.read, key)
        assert abs(record.epoch - grant.epoch) < 60_000  # by the clock of Redis
        process.send(signal.SIGKILL)
        await eventually(lambda: heard.down)
        claimed, _ = await ask(store.claim, key, other, record.epoch, "n")
        assert claimed.epoch > record.epoch


async def test_a_claim_from_a_dead_owner_takes_two_readings_and_an_old_lease(
    own_server, opened, client_of, ask, new_key
):
    began = trio.current_time()
    async with opened(own_server.url) as store:
        key, other = new_key(), "0123456789abcdef"
        grant = await ask(store.create, key, {})
        client_of.hset(f"sd:{{{key}}}:s", "owner", other)
        client_of.set(keys.alive_key(other), "x")
        outcome = await ask(store.claim, key, other, grant.epoch, "n")
        assert outcome == Failed(Refused.FENCED, "the owner is alive")
        client_of.delete(keys.alive_key(other))
        assert await ask(store.alive, other) is False
        first = trio.current_time() - began
        assert first >= 0.45
        claimed, _ = await ask(store.claim, key, other, grant.epoch, "n")
        assert claimed.owner == store.owner
        assert trio.current_time() - began >= 2.9 > first


@pytest.mark.parametrize("known", [False, True], ids=["not known", "known to be dead"])
async def test_nobody_is_claimed_from_at_a_redis_that_was_started_anew_a_moment_ago(
    brief, start_server, opened, ask, new_key, monkeypatch, known
):
    """It may lack the sign of life of one that lives, or that it claimed the session under another name. Seen before
    the claim, not with the next look at the others."""
    monkeypatch.setattr(directory, "WATCH", 3600.0)
    server = start_server(aof=True)
    async with opened(server.url) as store:
        heard, key, other = Heard(store), new_key(), "0123456789abcdef"
        grant = await ask(store.create, key, {})
        with server.client() as client:
            client.hset(f"sd:{{{key}}}:s", "owner", other)
        await trio.sleep(machine.TTL)  # its own lease is old enough
        if known:
            store.directory.dead[other] = None
        server.kill()
        server.start()
        began = trio.current_time()
        claimed = await ask(store.claim, key, other, grant.epoch, "n")
        while isinstance(claimed, Failed) and claimed.reason is Refused.AWAY:
            await trio.sleep(0.02)
            claimed = await ask(store.claim, key, other, grant.epoch, "n")
        assert heard.losses or heard.renamed
        assert trio.current_time() - began >= machine.TTL - 0.1
        assert claimed[0].owner == store.owner


async def test_nobody_is_dead_for_a_list_of_replicas_that_was_lost(brief, own_server, opened, client_of, ask, new_key):
    """Who is not in it any more has not ended: a primary of a cluster can be flushed that has it and a sign of life."""
    async with opened(own_server.url) as store:
        heard, key, other = Heard(store), new_key(), "0123456789abcdef"
        grant = await ask(store.create, key, {})
        client_of.hset(f"sd:{{{key}}}:s", "owner", other)
        client_of.set(keys.alive_key(other), "x")
        client_of.zadd(keys.REPLICAS, {other: 1})
        await eventually(lambda: other in store.directory.known)
        await trio.sleep(machine.TTL)  # its own lease is old enough
        client_of.delete(keys.REPLICAS, keys.alive_key(other))
        began = trio.current_time()
        await eventually(lambda: heard.losses)
        assert heard.down == []
        claimed, _ = await ask(store.claim, key, other, grant.epoch, "n")
        assert claimed.owner == store.owner
        assert trio.current_time() - began >= machine.TTL - 0.1


async def test_who_has_ended_in_order_is_dead_at_once_if_the_list_has_us(own_server, opened, client_of, monkeypatch):
    monkeypatch.setattr(directory, "TWICE", 3600.0)
    async with opened(own_server.url) as store:
        heard = Heard(store)
        async with opened(own_server.url) as other:
            ended = other.incarnation
            await eventually(lambda: ended in store.directory.known)
        await eventually(lambda: heard.down == [ended])
        assert client_of.zrange(keys.REPLICAS, 0, -1) == [store.owner.encode()]


@pytest.mark.parametrize("lost", ["the list", "the lease of another"])
async def test_a_primary_that_is_gone_hides_no_death_but_of_those_whose_lease_it_has(brief, opened, monkeypatch, lost):
    """With `cluster-require-full-coverage no`, where the rest of the cluster goes on without it."""
    if not installed():
        pytest.skip(MISSING)
    names = [next(name for n in count() if node_of(name := f"{n:016x}") == node) for node in range(3)]
    list_at = node_of("c")
    hidden = list_at if lost == "the list" else (list_at + 1) % 3
    dying, living = [node for node in range(3) if node != hidden]
    monkeypatch.setattr(lease_module, "secrets", SimpleNamespace(token_hex=lambda size: names[living]))
    with RedisCluster(3) as cluster:
        for node in cluster.nodes:
            with node.client() as client:
                client.config_set("cluster-require-full-coverage", "no")
        async with opened(cluster.url) as store:
            heard = Heard(store)
            with cluster.client() as client:
                for node in (hidden, dying):
                    client.zadd(keys.REPLICAS, {names[node]: 1})
                    client.set(keys.alive_key(names[node]), "x")
                await eventually(lambda: {names[hidden], names[dying]} == store.directory.known)
            cluster.nodes[hidden].kill()
            await trio.sleep(machine.TTL)
            with cluster.nodes[dying].client() as client:
                client.delete(keys.alive_key(names[dying]))
            await eventually(lambda: heard.down)
            assert heard.down == [names[dying]]


def node_of(name):
    """Which of three primaries has the keys of this name."""
    return key_slot(f"{{{name}}}".encode()) // -(-SLOTS // 3)


# The own lease ------------------------------------------------------------------------------------------------


async def test_a_lapsed_replica_takes_another_name_and_claims_from_its_own_former_one_at_once(
    own_server, opened, client_of, ask, new_key
):
    async with opened(own_server.url) as store:
        key, heard = new_key(), Heard(store)
        grant = await a_session(ask, store, key)
        client_of.delete(keys.alive_key(grant.owner))
        await eventually(lambda: heard.renamed)
        assert heard.renamed == [(grant.owner, store.owner)]
        assert client_of.exists(keys.alive_key(store.owner))
        assert client_of.xinfo_groups(keys.inbox_key(store.owner))
        claimed, record = await ask(store.claim, key, grant.owner, grant.epoch, "n")  # not refused as a living one's
        assert (claimed.owner, record.fields) == (store.owner, {"state": b"mine"})
        assert (await ask(store.touch, key, grant)).reason is Refused.FENCED
        # Its former list is there for the others until somebody says that nothing of it is left.
        assert await ask(store.owned, grant.owner, 0) == ([key], 0)
        store.disown(grant.owner, [key])
        await eventually(lambda: client_of.zrange(keys.REPLICAS, 0, -1) == [store.owner.encode()])
        assert heard.down == []


async def test_a_loop_that_stands_still_lets_its_lease_run_out(brief, own_server, opened, client_of, monkeypatch):
    monkeypatch.setattr(machine, "TICK_WITHIN", 0.5)
    monkeypatch.setattr(store_module, "TICK", 0.05)
    async with opened(own_server.url) as store:
        heard, before = Heard(store), store.owner
        time.sleep(3)
        assert not client_of.exists(keys.alive_key(before))
        assert store.doubtful
        await eventually(lambda: heard.certain)
        assert heard.renamed == [(before, store.owner)]
        assert not store.doubtful


async def test_a_busy_loop_keeps_its_lease(brief, own_server, opened):
    async with opened(own_server.url) as store:
        heard = Heard(store)
        until = trio.current_time() + 3
        while trio.current_time() < until:
            time.sleep(0.05)
            await trio.lowlevel.checkpoint()
        assert heard.renamed == []
        assert store.lease_age() < 1


async def test_a_name_that_the_others_have_lost_is_entered_again(brief, own_server, opened, client_of, ask):
    async with opened(own_server.url) as store:
        client_of.delete(keys.REPLICAS)
        await eventually(lambda: client_of.zrange(keys.REPLICAS, 0, -1) == [store.owner.encode()])


async def test_a_thread_that_crashes_is_told(own_server, opened, monkeypatch):
    lost: list[str] = []

    class Bug(float):
        def __lt__(self, _: object) -> bool:
            raise ZeroDivisionError("a bug")

    async with opened(own_server.url, on_lost=lost.append):
        monkeypatch.setattr(machine, "TICK_WITHIN", Bug())
        await eventually(lambda: lost)
    assert lost == ["the store's lease thread crashed: crashed: ZeroDivisionError('a bug')"]


# A Redis that is away, or forgets -----------------------------------------------------------------------------


async def test_nobody_can_say_who_lives_while_redis_is_away(own_server, opened, ask, new_key):
    async with opened(own_server.url) as store:
        own_server.kill()
        other = "0123456789abcdef"
        assert refused(await ask(store.claim, new_key(), other, 1, "n")) is Refused.AWAY
        assert refused(await ask(store.alive, other)) is Refused.AWAY
        assert refused(await ask(store.replicas)) is Refused.AWAY
        assert refused(await ask(store.owned, other, 0)) is Refused.AWAY
        store.disown(other, ["x"])
        await eventually(lambda: store.doubtful)


async def test_when_redis_comes_back_nobody_claims_what_another_living_replica_owns(
    brief, start_server, opened, ask, new_key
):
    """Every `alive` has run out by then: all look dead to all."""
    server = start_server(aof=True)
    async with opened(server.url) as one, opened(server.url) as two:
        heard, other, key = Heard(one), Heard(two), new_key()
        grant = await a_session(ask, one, key)
        server.kill()
        await eventually(lambda: one.doubtful and two.doubtful)
        await trio.sleep(1)
        server.start()
        outcomes = []

        async def steal() -> None:
            while not outcomes:
                outcome = await ask(two.claim, key, grant.owner, grant.epoch, "n")
                if not isinstance(outcome, Failed) or outcome.reason is not Refused.AWAY:
                    outcomes.append(outcome)
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(steal)
            await eventually(lambda: heard.certain and other.certain)
            # A machine that is slow enough has it doubt its lease once more meanwhile.
            while isinstance(own := await ask(one.claim, key, grant.owner, grant.epoch, "own"), Failed):
                assert refused(own) is Refused.AWAY
                await trio.sleep(0.05)
            again, _ = own
        assert [refused(outcome) for outcome in outcomes] == [Refused.FENCED]
        assert again.owner == one.owner == heard.renamed[0][1]
        assert await ask(one.touch, key, again) is None


async def test_a_redis_that_restarts_at_once_changes_no_name(start_server, opened, ask, new_key):
    server = start_server(aof=True)
    async with opened(server.url) as one, opened(server.url) as two:
        heard, other, key = Heard(one), Heard(two), new_key()
        grant = await a_session(ask, one, key)
        server.kill()
        server.start()
        await trio.sleep(2)
        if not heard.renamed:  # a machine that is slow enough lets the leases run out meanwhile
            assert await ask(one.touch, key, grant) is None
            assert other.down == []


async def test_a_redis_that_was_started_anew_may_have_lost_writes_and_that_is_said(start_server, opened, ask, new_key):
    server = start_server(aof=True)
    async with opened(server.url) as one, opened(server.url) as two:
        heard, other, key = Heard(one), Heard(two), new_key()
        grant = await a_session(ask, one, key)
        server.kill()
        server.start()
        await eventually(lambda: (heard.losses or heard.renamed) and (other.losses or other.renamed))
        assert grant.term < one.term
        again, _ = await ask(one.claim, key, grant.owner, grant.epoch, "again")
        assert again.term == one.term
        if not heard.renamed:
            assert heard.losses == one.term == 1


async def test_a_connection_that_breaks_loses_nothing(own_server, opened, client_of):
    async with opened(own_server.url) as one:
        heard = Heard(one)
        client_of.client_kill_filter(_type="normal", skipme=True)
        await trio.sleep(2.5)
        assert (heard.losses, heard.renamed, one.term) == (0, [], 0)


@pytest.mark.parametrize("kind", ["server", "cluster"])
async def test_what_a_primary_holds_has_a_name(kind, request):
    with closing(open_link(parse(request.getfixturevalue(kind).url))) as link:
        link.exchange([("EXISTS", f"sd:{n}") for n in range(99)])
        found = link.histories()
        assert len({history.name for history in found.values()}) == {"server": 1, "cluster": 3}[kind]
        assert link.histories() == found


def test_who_took_over_or_was_started_anew_may_lack_something():
    before = {"a": History("1", "0"), "b": History("2", "0")}
    assert not anew({}, before)
    assert not anew(before, {"a": History("1", "0")}), "one can't be asked"
    assert not anew(before, {**before, "c": History("3", "0")}), "one more"
    assert anew(before, {**before, "a": History("3", "0")}), "started anew"
    assert anew(before, {"c": History("3", "1"), "b": History("2", "0")}), "a copy has taken over"
    assert not anew(before, {"c": History("1", "0"), "b": History("2", "0")}), "by another address"


async def test_a_flushed_redis_gives_everybody_a_new_name(brief, own_server, opened, client_of, ask):
    async with opened(own_server.url) as one, opened(own_server.url) as two:
        heard, other = Heard(one), Heard(two)
        client_of.flushall()
        await eventually(lambda: heard.renamed and other.renamed)
        with trio.fail_after(PATIENCE):  # a name that was left again, for the machine was slow, is there for a while
            while {replica.incarnation for replica in await ask(one.replicas)} != {one.owner, two.owner}:
                await trio.sleep(0.05)


# Sealing keys -------------------------------------------------------------------------------------------------


async def test_who_seals_with_other_keys_than_a_living_replica_is_refused(own_server, opened, client_of):
    async with opened(own_server.url, seals=["a", "b"], info={"host": "elsewhere", "pid": 7}):
        with pytest.raises(StoreKeysDiffer, match=r"process 7 on elsewhere.*gateway\.keys") as error:
            async with opened(own_server.url, seals=["c"]):
                pass
        assert str(own_server.port) in str(error.value)
        assert client_of.zcard(keys.REPLICAS) == 1
        async with opened(own_server.url, seals=["a", "b"]):
            pass
        async with opened(own_server.url):  # one that seals nothing
            pass


async def test_keys_are_changed_one_replica_after_the_other(own_server, opened):
    """The new one is added everywhere, then it is the first, then the old one goes."""
    async with opened(own_server.url, seals=["old"]):
        for seals in (["old", "new"], ["new", "old"], ["old", "new"], ["new", "old"], ["new"]):
            async with opened(own_server.url, seals=seals):
                pass
        with pytest.raises(StoreKeysDiffer):
            async with opened(own_server.url, seals=["old"]):
                pass


async def test_keys_that_nobody_has_any_more_bar_nobody(own_server, opened):
    """What they sealed is lost with them, and that is told."""
    lines = Lines()
    async with opened(own_server.url, seals=["lost"]):
        pass
    async with opened(own_server.url, seals=["new"], log=lines):
        pass
    assert "sealing_keys_changed" in [event for event, _ in lines.events]
    lines = Lines()
    async with opened(own_server.url, seals=["new"], log=lines):
        pass
    assert "sealing_keys_changed" not in [event for event, _ in lines.events]
