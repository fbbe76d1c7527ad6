"""The store while its Redis dies, hangs, forgets, fills up or turns read-only."""

import socketserver
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from redis.exceptions import TryAgainError

from actors.ports import Deltas, Failed, Refused
from actors.protocol.table import Limits
from gateway.store.redis import store as redis_store
from gateway.store.redis import targets, writer
from gateway.store.redis.errors import StoreLoading
from gateway.store.redis.links import DirectLink, is_stuck
from gateway.store.redis.loop_links import open_loop_link
from gateway.store.redis.operations import Operation, Operations
from gateway.store.redis.slots import SLOTS, Slots
from gateway.store.redis.targets import parse
from gateway.store.redis.writers import Shards, Writers
from tests.support.patience import PATIENCE
from tests.support.store_calls import Lines, Outcomes, data_of, eventually, refused

pytestmark = pytest.mark.redis


async def test_functions_that_redis_forgot_are_loaded_again_and_nothing_is_reordered(server, opened, client, session):
    async with opened(server.url) as store:
        key, grant = await session(store)
        done = Outcomes()
        for seq in range(2, 12):
            if seq in (2, 7):
                client.script_flush()
            store.append(key, grant, "p1", seq, [b"%d" % seq], done, deltas=Deltas(fields={"last": b"%d" % seq}))
        assert await done.wait(10) == [None] * 10
        assert await data_of(store, key) == [b"%d" % seq for seq in range(1, 12)]
        client.script_flush()
        record = Outcomes()
        store.read(key, record)
        assert (await record.wait(1))[0].fields["last"] == b"11"


async def test_a_redis_that_is_killed_under_traffic_and_comes_back_has_every_event_once(start_server, opened, session):
    """Appends wait and are sent again; with an AOF that is always synced nothing is lost."""
    server = start_server(aof=True)
    limits = Limits(log_events=5_000)
    async with opened(server.url, limits) as store:
        sessions = [await session(store) for _ in range(10)]
        finished = [trio.Event() for _ in sessions]
        outcomes: list[Any] = []

        def step(index: int, seq: int, outcome: Any = None) -> None:
            outcomes.append(outcome)
            if seq > 120 or outcome is not None:
                return finished[index].set()
            key, grant = sessions[index]
            return store.append(key, grant, "p1", seq, [b"%d" % seq], partial(step, index, seq + 1))

        for index in range(10):
            step(index, 2)
        for _ in range(3):
            enough = len(outcomes) + 100
            await eventually(lambda enough=enough: len(outcomes) >= enough)
            server.kill()
            await trio.sleep(0.05)
            await trio.to_thread.run_sync(server.start)
        with trio.fail_after(PATIENCE):
            for event in finished:
                await event.wait()
        assert set(outcomes) == {None}
        for key, _ in sessions:
            assert await data_of(store, key) == [b"%d" % seq for seq in range(1, 121)]


async def test_while_redis_is_away_appends_wait_and_what_cannot_wait_fails(
    start_server, opened, session, ask, new_key, monkeypatch
):
    monkeypatch.setattr(writer, "PATIENCE", 0.3)
    server = start_server(aof=True)
    async with opened(server.url) as store:
        key, grant = await session(store)
        server.kill()
        done = Outcomes()
        store.append(key, grant, "p1", 2, [b"2"], done)
        assert refused(await ask(store.create, new_key(), {})) is Refused.AWAY
        assert store.state == "away"
        at_once = Outcomes()
        store.create(new_key(), {}, at_once)
        store.read(key, at_once)
        store.claim(key, grant.owner, grant.epoch, "n", at_once)
        store.open(key, grant, "p2", {}, b"1", at_once)
        assert [refused(outcome) for outcome in at_once.all] == [Refused.AWAY] * 4
        assert refused(await store.replay(key, "p1", 0, 0, 10)) is Refused.AWAY
        assert done.all == []
        await trio.to_thread.run_sync(server.start)
        assert await done.wait(1) == [None]
        await eventually(lambda: store.state == "ok")
        assert (await ask(store.create, new_key(), {})).owner == store.owner


async def test_when_redis_is_back_and_only_new_sessions_come_they_are_served(
    start_server, opened, ask, new_key, monkeypatch
):
    monkeypatch.setattr(writer, "PATIENCE", 0.3)
    server = start_server(aof=True)
    async with opened(server.url) as store:
        server.kill()
        assert refused(await ask(store.create, new_key(), {})) is Refused.AWAY
        await trio.to_thread.run_sync(server.start)
        await eventually(lambda: store.state == "ok")
        assert (await ask(store.create, new_key(), {})).owner == store.owner


async def test_a_redis_that_was_restarted_replays_at_the_first_question(start_server, opened, session):
    """The reader's connection was to the former process; that is no reason to refuse anybody."""
    server = start_server(aof=True)
    async with opened(server.url) as store:
        key, _ = await session(store)
        assert len(await data_of(store, key)) == 1
        server.kill()
        await trio.to_thread.run_sync(server.start)
        assert len(await data_of(store, key)) == 1


async def test_a_redis_that_dies_is_missed_while_there_is_nothing_to_write_and_told_once(start_server, opened):
    server, log = start_server(), Lines()

    def told() -> list[str]:
        return [event for event, _ in log.events if event in ("store_away", "store_back")]

    async with opened(server.url, log=log) as store:
        server.kill()
        await eventually(lambda: store.state == "away")
        await eventually(lambda: told() == ["store_away"])
        server.start()
        await eventually(lambda: told() == ["store_away", "store_back"])
        assert store.state == "ok"
    [away, back] = [values for event, values in log.events if event in ("store_away", "store_back")]
    assert "refused" in away["error"]
    assert back["seconds"] >= writer.TELL_AFTER


async def test_a_redis_that_hangs_for_one_timeout_is_told(start_server, opened, session, monkeypatch):
    """It has been away since it was asked, not since that is known."""
    monkeypatch.setattr(targets, "REPLY_TIMEOUT", 0.3)
    monkeypatch.setattr(writer, "TELL_AFTER", 0.25)
    server, log = start_server(), Lines()
    async with opened(server.url, log=log) as store:
        key, grant = await session(store)
        server.pause()
        done = Outcomes()
        store.append(key, grant, "p1", 2, [b"2"], done)
        await eventually(lambda: store.state == "away")
        server.go_on()
        assert await done.wait(1) == [None]
    told = {event: values for event, values in log.events if event in ("store_away", "store_back")}
    assert list(told) == ["store_away", "store_back"]
    assert told["store_back"]["seconds"] >= targets.REPLY_TIMEOUT


async def test_a_connection_that_is_made_anew_is_told_to_nobody(server, opened, session, client):
    log = Lines()
    async with opened(server.url, log=log) as store:
        key, grant = await session(store)
        done = Outcomes()
        for seq in (2, 3):
            client.client_kill_filter(_type="normal", skipme=True)
            store.append(key, grant, "p1", seq, [b"%d" % seq], done)
            await done.wait(seq - 1)
        assert await done.wait(2) == [None, None]
    assert "store_away" not in [event for event, _ in log.events]


async def test_an_append_is_away_when_redis_has_been_away_for_the_hold(start_server, opened, session, ask):
    server = start_server()
    async with opened(server.url, hold=0.3) as store:
        key, grant = await session(store)
        server.kill()
        assert refused(await ask(store.append, key, grant, "p1", 2, [b"2"])) is Refused.AWAY


async def test_a_redis_that_hangs_executes_nothing_late(start_server, opened, session, ask, monkeypatch):
    """The next connection ends its predecessor before it sends: what that left in Redis' buffers must not run after."""
    monkeypatch.setattr(targets, "REPLY_TIMEOUT", 0.2)
    server = start_server(aof=True)
    async with opened(server.url) as store:
        key, grant = await session(store)
        server.pause()
        done = Outcomes()
        store.append(key, grant, "p1", 2, [b"2"], done, deltas=Deltas(fields={"last": b"2"}))
        await eventually(lambda: store.state == "away")
        store.append(key, grant, "p1", 3, [b"3"], done, deltas=Deltas(fields={"last": b"3"}))
        server.go_on()
        assert await done.wait(2) == [None, None]
        assert await data_of(store, key) == [b"1", b"2", b"3"]
        assert (await ask(store.read, key)).fields["last"] == b"3"


async def test_after_a_flush_writes_find_nothing_and_new_sessions_work(start_server, opened, session, ask, new_key):
    server = start_server()
    async with opened(server.url) as store:
        key, grant = await session(store)
        with server.client() as client:
            client.flushall()
        assert refused(await ask(store.append, key, grant, "p1", 2, [b"2"])) is Refused.GONE
        assert refused(await store.replay(key, "p1", grant.epoch, 1, 10)) is Refused.GONE
        assert not isinstance(await ask(store.create, new_key(), {}), Failed)


async def test_a_full_redis_refuses_sessions_holds_events_and_lets_go_of_what_ends(
    start_server, opened, session, ask, new_key
):
    server = start_server()
    async with opened(server.url) as store:
        key, grant = await session(store)
        other, other_grant = await session(store)
        free, free_grant = await session(store)
        spent, spent_grant = await session(store)
        with server.client() as client:
            client.config_set("maxmemory", "1mb")
            assert refused(await ask(store.create, new_key(), {})) is Refused.STORE_FULL
            held = Outcomes()
            store.append(key, grant, "p1", 2, [b"2"], held)
            store.append(key, grant, "p1", 3, [b"3"], held)
            assert await ask(store.release, free, free_grant) is None
            assert await ask(store.end, other, other_grant, "why") is None
            assert await ask(store.delete, spent, spent_grant) is None
            assert (await ask(store.read, key)).fields == {"state": b"new"}
            assert store.state == "full"
            assert held.all == []
            client.config_set("maxmemory", "0")
        assert await held.wait(2) == [None, None]
        assert await data_of(store, key) == [b"1", b"2", b"3"]


async def test_a_redis_that_turned_read_only_holds_events_until_it_is_a_primary_again(start_server, opened, session):
    server = start_server()
    async with opened(server.url) as store:
        key, grant = await session(store)
        with server.client() as client:
            client.config_set("replica-serve-stale-data", "yes")
            client.replicaof("127.0.0.1", "1")
            done = Outcomes()
            store.append(key, grant, "p1", 2, [b"2"], done)
            await eventually(lambda: store.state == "read-only")
            client.replicaof("NO", "ONE")
        assert await done.wait(1) == [None]


PATIENT = 600.0
"""Seconds that writes wait: whoever does not wait for them is told at once."""


def full(client: Any) -> None:
    client.config_set("maxmemory", "1mb")


def denied(client: Any) -> None:
    client.acl_setuser("default", enabled=True, nopass=True, commands=["+@all", "-xadd"], keys=["*"])


def read_only(client: Any) -> None:
    client.config_set("replica-serve-stale-data", "yes")
    client.replicaof("127.0.0.1", "1")


@pytest.mark.parametrize(
    ("trouble", "state", "reason"),
    [(full, "full", Refused.STORE_FULL), (denied, "denied", Refused.AWAY), (read_only, "read-only", Refused.AWAY)],
)
async def test_the_first_stream_that_redis_refuses_is_not_waited_for(
    start_server, opened, session, ask, trouble, state, reason
):
    """It can go on without a log; an event of one that has a log waits."""
    server = start_server()
    async with opened(server.url, hold=PATIENT) as store:
        key, grant = await session(store)
        with server.client() as client:
            trouble(client)
        held = Outcomes()
        with trio.fail_after(PATIENT / 10):
            for stream in ("p2", "p3"):
                assert refused(await ask(store.open, key, grant, stream, {}, b"1")) is reason
            store.append(key, grant, "p1", 2, [b"2"], held)
            await eventually(lambda: store.state == state)
            assert refused(await ask(store.open, key, grant, "p4", {}, b"1")) is reason
        assert held.all == []
        if trouble is not denied:
            return
        with server.client() as client:
            client.acl_setuser("default", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
        assert await held.wait(1) == [None]


async def test_a_stream_that_begins_when_redis_has_just_died_does_not_wait_as_long_as_an_event(
    start_server, opened, session, ask
):
    server = start_server()
    async with opened(server.url, hold=PATIENT) as store:
        key, grant = await session(store)
        server.kill()
        with trio.fail_after(PATIENT / 10):
            assert refused(await ask(store.open, key, grant, "p2", {}, b"1")) is Refused.AWAY


class _Loading(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while self.request.recv(65536):
            self.request.sendall(b"-LOADING Redis is loading the dataset in memory\r\n")


async def test_a_redis_that_reads_its_file_is_said_to_be_loading():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Loading) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        writing = writer.Writer(
            open_loop_link(parse(f"redis://127.0.0.1:{server.server_address[1]}")),
            hold=PATIENT,
            queue_bytes=1000,
            on_batch=lambda operations, seconds: None,
            on_error=lambda text: None,
        )
        done = Outcomes()
        operation = Operations(Limits()).create("a" * 32, "owner", "nonce", {}, done)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writing.run)
            writing.submit(operation)
            await eventually(lambda: writing.state == "loading")
            [outcome] = await done.wait(1)
            assert refused(outcome) is Refused.AWAY
            assert "LOADING" in outcome.detail.upper()
            writing.close(0.0)
        server.shutdown()


@pytest.fixture
def reading_its_file(start_server):
    """A server that does so for some seconds; it looks up after every thousand commands."""
    server = start_server("--key-load-delay", "100", aof=True)
    with server.client() as client, client.pipeline(transaction=False) as pipeline:
        for number in range(20_000):
            pipeline.set(f"other:{number}", "x")
        pipeline.execute()
    server.kill()
    server.start()
    return server


async def test_a_start_waits_until_redis_has_read_its_file(reading_its_file, opened, session):
    log = Lines()
    async with opened(reading_its_file.url, log=log) as store:
        await session(store)
    [(_, told)] = [line for line in log.events if line[0] == "store_loading"]
    assert "reads its file" in told["reason"]


async def test_a_start_does_not_wait_for_that_for_ever(reading_its_file, opened, monkeypatch):
    monkeypatch.setattr(redis_store, "LOADS_WITHIN", 0.1)
    with pytest.raises(StoreLoading, match="reads its file"):
        async with opened(reading_its_file.url):
            pass


class _Stuck:
    """Does one batch, and never ends the next."""

    def __init__(self) -> None:
        self.batches = 0

    async def exchange(self, commands: Any) -> Any:
        self.batches += 1
        if self.batches > 1:
            await trio.sleep_forever()
        return [b"OK"] * len(commands)

    def close(self) -> None:
        pass


async def test_a_writer_that_is_cancelled_between_two_batches_tells_each_outcome_once():
    """And that what was sent may have been executed."""
    options: dict[str, Any] = {"on_batch": lambda *_: None, "on_error": pytest.fail}
    link: Any = _Stuck()
    writing = writer.Writer(link, hold=PATIENT, queue_bytes=10_000_000, **options)
    told = [Outcomes() for _ in range(writer.BATCH_OPERATIONS + 1)]
    operations = [Operation(f"{number}", ("SET", f"sd:{number}", 1), done) for number, done in enumerate(told)]
    for operation in operations:
        writing.submit(operation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writing.run)
        await eventually(lambda: link.batches == 2)
        nursery.cancel_scope.cancel()
    outcomes = [await done.wait(1) for done in told]
    assert outcomes[:-1] == [[None]] * writer.BATCH_OPERATIONS
    assert refused(outcomes[-1][0]) is Refused.AWAY
    assert operations[-1].tried


class _Moving:
    """A cluster with a slot on its way from one primary to another."""

    def __init__(self) -> None:
        self.asked = self.prepared = 0
        self.there = False

    async def exchange(self, commands: Any) -> Any:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        return [[b"OK"] if self.there else TryAgainError("TRYAGAIN")] * len(commands)

    async def prepare(self) -> None:
        self.prepared += 1

    def close(self) -> None:
        pass


async def test_a_slot_on_its_way_is_asked_for_now_and_then_until_it_is_there():
    link: Any = _Moving()
    writing = writer.Writer(link, hold=PATIENT, queue_bytes=10_000, on_batch=lambda *_: None, on_error=pytest.fail)
    done = Outcomes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writing.run)
        writing.submit(Operation("a", ("SET", "sd:a", 1), done))
        await trio.sleep(6 * writer.MOVING_PAUSE)
        assert link.prepared <= link.asked <= link.prepared + 1 <= 8, "each time but for one that it just asks"
        link.there = True
        assert await done.wait(1) == [None]
        nursery.cancel_scope.cancel()


async def test_what_must_come_second_waits_in_a_cluster_whoever_writes_both():
    """One writer may send them to two primaries."""
    everything = Slots([(0, SLOTS - 1, ("h", 1))])
    submitted: list[Operation] = []
    sole: Any = SimpleNamespace(submit=submitted.append)
    for slots, at_once in ((None, 2), (everything, 1)):
        submitted.clear()
        first = Operation("k", ("SADD", "sd:r:{i}:owned", "k"), lambda _: None)
        second = Operation("k", ("SET", "sd:{k}:s", 1), lambda _: None)
        Writers(Shards(slots), 1000, lambda *_: sole).submit_after(first, second)
        assert submitted == [first, second][:at_once]
        if at_once == 1:
            first.done(None)
            assert submitted == [first, second]


def test_a_link_looks_for_the_primary_anew_when_it_has_become_a_replica(start_server):
    old, new = start_server(), start_server()
    behind = [old, new]
    link = DirectLink(lambda: parse(behind[0].url).connections()())
    try:
        assert link.exchange([("SET", "sd:a", 1)]) == [b"OK"]
        with old.client() as client:
            client.replicaof("127.0.0.1", "1")
        behind.pop(0)
        [reply] = link.exchange([("SET", "sd:a", 2)])
        assert is_stuck(reply)
        assert link.exchange([("SET", "sd:a", 2)]) == [b"OK"]
    finally:
        link.close()
