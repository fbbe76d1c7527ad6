"""What one replica sees of the others, in memory and on a real Redis: who lives, who owns what, whose lease is over."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from actors.machines.cluster import lease as machine
from actors.machines.session import record
from actors.ports import NO_DELTAS, Failed, Refused
from gateway.store import memory_cluster
from gateway.store.memory import MemoryStore
from gateway.store.redis import directory
from gateway.store.redis.errors import LinkDown
from tests.support.store_calls import Outcomes, eventually, refused


@dataclass
class Heard:
    """A listener that writes down what it is told, in order."""

    said: list[tuple[str, ...]] = field(default_factory=list)
    letters: list[bytes] = field(default_factory=list)

    def on_mail(self, letters):
        self.letters += letters

    def on_renamed(self, former, now):
        self.said.append(("renamed", former, now))

    def on_loss(self):
        self.said.append(("loss",))

    def on_certain(self):
        self.said.append(("certain",))

    def on_down(self, incarnation):
        self.said.append(("down", incarnation))


class Cut:
    """A link on which nothing comes through."""

    def exchange(self, commands):
        raise LinkDown("cut")

    def split(self, commands):
        raise LinkDown("cut")

    def renew(self):
        pass

    def prepare(self):
        raise LinkDown("cut")

    def histories(self, key=None):
        raise LinkDown("cut")

    def close(self):
        pass


@dataclass
class Replicas:
    """Opens replicas of one store, and does to them what may happen to a process."""

    kind: str
    open: Callable[..., Any]
    links: dict[Any, Any] = field(default_factory=dict)

    def cut_off(self, store):
        """Its beats don't reach the store any more."""
        if self.kind == "memory":
            store.replica.cut_off()
        else:
            lease = store.directory.lease
            self.links[store], lease.link = lease.link, Cut()

    def restore(self, store):
        if self.kind == "memory":
            store.replica.resume()
        else:
            store.directory.lease.link = self.links.pop(store)


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Leases that run out soon."""
    for name, seconds in (("TTL", 1.5), ("EVERY", 0.2), ("DOUBT", 1.0)):
        monkeypatch.setattr(machine, name, seconds)
    monkeypatch.setattr(directory, "WATCH", 0.3)
    for module in (directory, memory_cluster):
        monkeypatch.setattr(module, "TWICE", 0.2)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def replicas(request, opened, limits):
    if request.param == "redis":
        server = request.getfixturevalue("start_server")()
        return Replicas("redis", lambda **options: opened(server.url, limits, **options))
    stores: list[MemoryStore] = []

    @asynccontextmanager
    async def beside(**options: Any) -> AsyncIterator[MemoryStore]:
        store = stores[0].beside(**options) if stores else MemoryStore(limits, trio.current_time, **options)
        stores.append(store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.replica.run)
            yield store
            store.kill(at_once=True)
            nursery.cancel_scope.cancel()

    return Replicas("memory", beside)


async def a_session(ask, store, key):
    grant = await ask(store.create, key, {"state": b"new"})
    assert await ask(store.save, key, grant, 1, NO_DELTAS) is None
    return grant


async def seen_by(store, other):
    """Until a replica has seen that another lives."""
    if not isinstance(store, MemoryStore):
        await eventually(lambda: other.incarnation in store.directory.known)


async def test_a_session_is_claimed_from_a_living_replica_by_nobody(replicas, ask, new_key):
    async with replicas.open() as one, replicas.open() as two:
        key = new_key()
        grant = await a_session(ask, one, key)
        assert one.incarnation == one.owner == grant.owner != two.owner
        assert await ask(two.alive, one.owner) is True
        outcome = await ask(two.claim, key, one.owner, grant.epoch, "n")
        assert outcome == Failed(Refused.FENCED, "the owner is alive")
        assert await ask(one.touch, key, grant) is None


async def test_who_is_cut_off_doubts_and_is_found_dead_by_the_others_once(replicas, ask, new_key):
    async with replicas.open() as one, replicas.open() as two:
        heard = Heard()
        two.subscribe(heard)
        key = new_key()
        grant = await a_session(ask, one, key)
        await trio.sleep(0.5)
        assert not one.doubtful
        replicas.cut_off(one)
        await trio.sleep(0.3)
        assert not one.doubtful
        assert refused(await ask(two.claim, key, one.owner, grant.epoch, "n")) is Refused.FENCED
        await eventually(lambda: one.doubtful)
        await eventually(lambda: heard.said)
        assert await ask(two.alive, one.owner) is False
        claimed, record = await ask(two.claim, key, one.owner, grant.epoch, "n")
        assert (claimed.owner, record.fields) == (two.owner, {"state": b"new"})
        assert refused(await ask(one.touch, key, grant)) is Refused.FENCED
        await trio.sleep(0.6)
        assert heard.said == [("down", one.owner)]
        late = Heard()
        two.subscribe(late)
        assert late.said == heard.said
        replicas.restore(one)


async def test_a_doubt_that_passes_changes_no_name(replicas, ask):
    async with replicas.open() as one, replicas.open() as two:
        heard, other, name = Heard(), Heard(), one.incarnation
        one.subscribe(heard)
        two.subscribe(other)
        replicas.cut_off(one)
        await eventually(lambda: one.doubtful)
        replicas.restore(one)
        await eventually(lambda: heard.said)
        assert (heard.said, one.incarnation, one.doubtful) == ([("certain",)], name, False)
        assert other.said == []


async def test_who_lapsed_goes_on_as_another_and_claims_its_sessions_back_at_once(replicas, ask, new_key):
    async with replicas.open() as one, replicas.open() as two:
        heard, other, key = Heard(), Heard(), new_key()
        one.subscribe(heard)
        two.subscribe(other)
        grant = await a_session(ask, one, key)
        replicas.cut_off(one)
        await eventually(lambda: other.said)
        replicas.restore(one)
        await eventually(lambda: ("certain",) in heard.said)
        # On a busy machine the other's lease may run out as well, or this one's once more.
        renamed, certain, *_ = [said for said in heard.said if said[0] != "down"]
        assert (renamed[:2], certain) == (("renamed", grant.owner), ("certain",))
        assert one.owner == one.incarnation != grant.owner
        assert not one.doubtful
        assert await ask(one.alive, grant.owner) is False
        assert await ask(one.alive, one.owner) is True
        again, _ = await ask(one.claim, key, grant.owner, grant.epoch, "n")
        assert again.owner == one.owner
        assert again.epoch > grant.epoch
        assert refused(await ask(one.touch, key, grant)) is Refused.FENCED
        assert refused(await ask(two.claim, key, one.owner, again.epoch, "n")) is Refused.FENCED


async def test_who_ends_in_order_is_known_to_have_ended(replicas, ask, new_key):
    async with replicas.open() as two:
        heard = Heard()
        two.subscribe(heard)
        async with replicas.open() as one:
            await seen_by(two, one)
            key, free = new_key(), new_key()
            grant, other = await a_session(ask, one, key), await a_session(ask, one, free)
            assert await ask(one.release, free, other) is None
            name = one.owner
        await eventually(lambda: heard.said)
        assert heard.said == [("down", name)]
        assert refused(await ask(two.post, name, b"x")) is Refused.DEAD
        claimed, _ = await ask(two.claim, key, name, grant.epoch, "n")
        assert claimed.owner == two.owner


async def test_what_work_was_released_is_found_where_it_was_left(replicas, ask, new_key):
    async with replicas.open() as two:
        heard = Heard()
        two.subscribe(heard)
        async with replicas.open() as one:
            working, idle, kept = sorted(new_key() for _ in range(3))
            grants = {key: await a_session(ask, one, key) for key in (working, idle, kept)}
            assert await ask(one.release, working, grants[working], work=True) is None
            assert await ask(one.release, idle, grants[idle]) is None
            name = one.owner
        await eventually(lambda: heard.said)
        keys, cursor = await ask(two.owned, name, 0)
        assert (sorted(keys), cursor) == ([working, kept], 0)
        assert {replica.incarnation for replica in await ask(two.replicas)} == {name, two.owner}
        two.disown(name, [working])
        assert await _owned(ask, two, name) == [kept]
        two.disown(name, [kept])
        assert await _owned(ask, two, name) == []
        assert [replica.incarnation for replica in await ask(two.replicas)] == [two.owner]


async def _owned(ask, store, name):
    found, cursor = [], 0
    while True:
        keys, cursor = await ask(store.owned, name, cursor)
        found += keys
        if not cursor:
            return sorted(set(found))


async def test_nothing_is_disowned_of_who_lives(replicas, ask, new_key):
    async with replicas.open() as one, replicas.open() as two:
        key = new_key()
        await a_session(ask, one, key)
        two.disown(one.owner, [key])
        assert await _owned(ask, two, one.owner) == [key]


async def test_what_a_replica_owns_comes_in_pages(replicas, ask):
    async with replicas.open() as one, replicas.open() as two:
        keys = sorted(secrets.token_hex(16) for _ in range(1000))
        for key in keys:
            one.create(key, {}, lambda outcome: None)
        await ask(one.read, keys[-1])
        first, cursor = await ask(two.owned, one.owner, 0)
        assert cursor
        assert 0 < len(first) < 500
        assert await _owned(ask, two, one.owner) == keys


async def test_replicas_say_what_they_are(replicas, ask):
    async with replicas.open(), replicas.open(info={"version": "1.2.3", "configuration": "abc"}) as two:
        found = {replica.incarnation: replica for replica in await ask(two.replicas)}
        assert len(found) == 2
        assert all(replica.alive for replica in found.values())
        assert found[two.owner].info.items() >= {"version": "1.2.3", "configuration": "abc"}.items()


async def test_records_are_written_as_all_who_live_read_them(replicas, monkeypatch):
    monkeypatch.setattr(record, "READS", (2, 4))
    async with replicas.open(info={"schema": [2, 4]}) as one:
        await eventually(lambda: one.schema == 4)
        async with replicas.open(info={"schema": [1, 3]}):
            await eventually(lambda: one.schema == 3)
            async with replicas.open(info={"schema": None}):
                await eventually(lambda: one.schema == 2)  # what is not read here is not written
            await eventually(lambda: one.schema == 3)
        await eventually(lambda: one.schema == 4)


async def test_of_two_replicas_that_claim_at_once_one_gets_it(replicas, ask, new_key):
    async with replicas.open() as one, replicas.open() as two, replicas.open() as three:
        heard, key = Heard(), new_key()
        two.subscribe(heard)
        grant = await a_session(ask, one, key)
        replicas.cut_off(one)
        await eventually(lambda: heard.said)
        outcomes = []

        async def claim(store):
            outcomes.append(await ask(store.claim, key, grant.owner, grant.epoch, secrets.token_hex(4)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim, two)
            nursery.start_soon(claim, three)
        assert [isinstance(outcome, Failed) for outcome in outcomes].count(False) == 1
        assert [refused(o) for o in outcomes if isinstance(o, Failed)] == [Refused.FENCED]
        replicas.restore(one)


# Mail


async def test_letters_come_once_and_in_the_order_of_their_sender(replicas, ask):
    async with replicas.open() as one, replicas.open() as two, replicas.open() as three:
        heard = Heard()
        three.subscribe(heard)
        names = [b"%s %d" % (sender, number) for number in range(100) for sender in (b"one", b"two", b"three")]
        outcomes = Outcomes()
        for name in names:
            sender = {b"one": one, b"two": two, b"three": three}[name.split()[0]]
            sender.post(three.incarnation, name, outcomes)
        assert all(isinstance(outcome, str) for outcome in await outcomes.wait(300))
        await eventually(lambda: len(heard.letters) >= 300)
        for sender in (b"one", b"two", b"three"):
            assert [name for name in heard.letters if name.startswith(sender + b" ")] == [
                b"%s %d" % (sender, number) for number in range(100)
            ]


async def test_a_letter_is_withdrawn_as_long_as_nobody_has_read_it(replicas, ask):
    async with replicas.open() as one, replicas.open() as two:
        withdrawn, read = [await ask(one.post, two.incarnation, letter) for letter in (b"withdrawn", b"read")]
        assert await ask(one.withdraw, two.incarnation, withdrawn) is True
        heard = Heard()
        two.subscribe(heard)
        await eventually(lambda: heard.letters == [b"read"])
        assert await ask(one.withdraw, two.incarnation, read) is False
        assert await ask(one.withdraw, "nobody", read) is False


async def test_what_a_replica_had_not_read_when_its_lease_ran_out_can_be_withdrawn(replicas, ask):
    async with replicas.open() as one, replicas.open() as two:
        other = Heard()
        one.subscribe(other)
        former = two.incarnation
        entry = await ask(one.post, former, b"unread")
        replicas.cut_off(two)
        await eventually(lambda: other.said == [("down", former)])
        assert refused(await ask(one.post, former, b"late")) is Refused.DEAD
        assert await ask(one.withdraw, former, entry) is True
        replicas.restore(two)
        heard = Heard()
        two.subscribe(heard)
        await eventually(lambda: two.incarnation != former)
        assert isinstance(await ask(one.post, two.incarnation, b"new"), str)
        await eventually(lambda: heard.letters == [b"new"])
