"""What only the store in Redis does: group commit, keys and their expiry, holes in logs, checks at the start."""

import pytest
import trio

from actors.machines.session import record
from actors.ports import NO_DELTAS, Failed, Grant, LogEntry, Record, Refused, StreamHead
from actors.protocol.table import Limits
from gateway.store.redis import StoreDenied, StoreError, StoreTooOld, StoreUnreachable, StoreUrlError, checks
from tests.support.patience import PATIENCE
from tests.support.store_calls import Lines, Outcomes, data_of, eventually, refused

pytestmark = pytest.mark.redis


# Group commit


async def test_what_queues_during_a_batch_goes_out_as_the_next_one(start_server, opened, session):
    server = start_server()
    batches: list[int] = []
    async with opened(server.url, on_batch=lambda operations, _: batches.append(operations)) as store:
        sessions = [await session(store) for _ in range(8)]
        server.pause()
        batches.clear()
        done = Outcomes()
        for key, grant in sessions:
            store.append(key, grant, "p1", 2, [b"2"], done)
        await eventually(lambda: store.queued > 0)
        for key, grant in sessions:
            store.append(key, grant, "p1", 3, [b"3"], done)
        server.go_on()
        assert await done.wait(16) == [None] * 16
        assert sum(batches) == 16
        assert len(batches) <= 4


async def test_a_session_may_have_many_operations_under_way(server, opened, session):
    limits = Limits(log_events=5_000)
    async with opened(server.url, limits) as store:
        key, grant = await session(store)
        done = Outcomes()
        for seq in range(2, 1_502):
            store.append(key, grant, "p1", seq, [b"%d" % seq], done)
        assert set(await done.wait(1_500)) == {None}
        assert await data_of(store, key) == [b"%d" % seq for seq in range(1, 1_502)]


async def test_a_full_queue_refuses_at_once_but_lets_an_end_in(start_server, opened, session, ask):
    server = start_server()
    async with opened(server.url, queue_bytes=10_000) as store:
        key, grant = await session(store)
        server.pause()
        done, refusals = Outcomes(), Outcomes()
        store.append(key, grant, "p1", 2, [b"x" * 9_000], done)
        store.append(key, grant, "p1", 3, [b"x" * 9_000], refusals)
        assert refusals.all == [Failed(Refused.FULL, "store_full")]
        store.end(key, grant, "why", done)
        server.go_on()
        assert await done.wait(2) == [None, None]
        assert refused(await ask(store.read, key)) is Refused.ENDED


async def test_closing_writes_what_is_queued(server, opened, session):
    done = Outcomes()
    async with opened(server.url) as store:
        key, grant = await session(store)
        for seq in range(2, 10):
            store.append(key, grant, "p1", seq, [b"%d" % seq], done)
    assert done.all == [None] * 8
    store.touch(key, grant, done)
    assert refused(done.all[-1]) is Refused.AWAY


async def test_a_cancelled_block_closes_the_store_as_well_as_any(start_server, opened, session):
    server, done = start_server(), Outcomes()
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with opened(server.url) as store:
            key, grant = await session(store)
            store.append(key, grant, "p1", 2, [b"2"], done)
            scope.cancel()
            await trio.sleep_forever()
    assert done.all == [None]
    with server.client() as client:
        assert client.keys("sd:r:*:alive") == []


async def test_a_store_that_is_cancelled_as_it_opens_is_closed(start_server, opened):
    server = start_server()
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with opened(server.url):
            scope.cancel()
    with server.client() as client:
        assert client.keys("sd:r:*:alive") == []


async def test_opening_may_be_cancelled_while_redis_hangs(start_server, opened):
    server = start_server()
    server.pause()
    with trio.move_on_after(0.1) as scope:
        async with opened(server.url):
            pass
    assert scope.cancelled_caught


# Keys


async def test_keys_expire_with_what_they_hold(server, opened, client, ask, new_key):
    async with opened(server.url) as store:
        key = new_key()
        record, log = f"sd:{{{key}}}:s", f"sd:{{{key}}}:l:p1"
        grant = await ask(store.create, key, {})
        await ask(store.open, key, grant, "p1", {}, b"x")
        assert 50_000 < client.pttl(record) <= 60_000
        assert 50_000 < client.pttl(log) <= 60_000
        await ask(store.save, key, grant, 1, NO_DELTAS)
        assert 2_390_000 < client.pttl(record) <= 2_400_000
        assert 2_390_000 < client.pttl(log) <= 2_400_000
        await ask(store.append, key, grant, "p1", 2, [], finish=True)
        assert 0 < client.pttl(log) <= 60_000
        await ask(store.end, key, grant, "why")
        assert client.exists(log) == 0
        assert 590_000 < client.pttl(record) <= 600_000


async def test_of_a_deleted_record_no_key_is_left(server, opened, client, session, ask):
    async with opened(server.url) as store:
        key, grant = await session(store)
        assert client.exists(f"sd:{{{key}}}:s", f"sd:{{{key}}}:l:p1") == 2
        assert await ask(store.delete, key, grant) is None
        assert not list(client.scan_iter(f"sd:{{{key}}}:*"))
        await eventually(lambda: not client.exists(f"sd:r:{{{store.owner}}}:owned"))


async def test_a_touch_keeps_the_record_and_its_unfinished_logs(server, opened, client, session, ask):
    async with opened(server.url) as store:
        key, grant = await session(store)
        record, log = f"sd:{{{key}}}:s", f"sd:{{{key}}}:l:p1"
        for name in (record, log):
            client.pexpire(name, 5_000)
        assert await ask(store.touch, key, grant) is None
        assert min(client.pttl(record), client.pttl(log)) > 2_390_000


@pytest.mark.parametrize("write", ["append", "save", "release", "claim"])
async def test_any_write_keeps_all_logs_once_an_eighth_of_the_idle_time_has_passed(
    server, opened, client, session, ask, write
):
    async with opened(server.url) as store:
        key, grant = await session(store)
        await ask(store.open, key, grant, "g1", {}, b"quiet")
        record, quiet = f"sd:{{{key}}}:s", f"sd:{{{key}}}:l:g1"
        client.hincrby(record, "kept", -1)
        for name in (record, quiet):
            client.pexpire(name, 5_000)
        if write == "append":
            assert await ask(store.append, key, grant, "p1", 2, [b"2"]) is None
        elif write == "save":
            assert await ask(store.save, key, grant, (await ask(store.read, key)).rev + 1, NO_DELTAS) is None
        elif write == "release":
            assert await ask(store.release, key, grant) is None
        else:
            await ask(store.claim, key, grant.owner, grant.epoch, "again")
        assert min(client.pttl(record), client.pttl(quiet)) > 2_390_000


async def test_what_is_restored_expires_too(server, opened, client, ask, new_key):
    async with opened(server.url) as store:
        key, lost = new_key(), Record("", 0, streams={"g1": StreamHead(2)})
        grant = Grant(store.owner, 7)
        assert await ask(store.restore, key, grant, 1, lost) is None
        assert 2_390_000 < client.pttl(f"sd:{{{key}}}:s") <= 2_400_000
        assert await ask(store.append, key, grant, "g1", 3, [b"3"]) is None
        assert 2_390_000 < client.pttl(f"sd:{{{key}}}:l:g1") <= 2_400_000


async def test_the_owned_set_names_a_session_from_before_its_creation_until_after_its_end(
    server, opened, client, session, ask
):
    async with opened(server.url) as store:
        key, grant = await session(store)
        owned = f"sd:r:{{{store.owner}}}:owned"
        assert client.smembers(owned) == {key.encode()}
        await ask(store.end, key, grant, "why")
        await eventually(lambda: not client.exists(owned))


@pytest.mark.parametrize("step", ["end", "release", "claim"])
async def test_the_owned_set_does_not_name_a_session_that_redis_has_forgotten(
    server, opened, client, session, ask, step
):
    async with opened(server.url) as store:
        key, grant = await session(store)
        client.delete(f"sd:{{{key}}}:s")
        if step == "end":
            outcome = await ask(store.end, key, grant, "why")
        elif step == "release":
            outcome = await ask(store.release, key, grant)
        else:
            outcome = await ask(store.claim, key, None, grant.epoch, "nonce")
        assert outcome.reason is Refused.GONE
        await eventually(lambda: not client.exists(f"sd:r:{{{store.owner}}}:owned"))


async def test_a_record_of_a_newer_schema_is_left_alone(server, opened, client, session, ask):
    async with opened(server.url) as store:
        key, grant = await session(store)
        client.hset(f"sd:{{{key}}}:s", "v", 2)
        assert refused(await ask(store.read, key)) is Refused.TOO_NEW
        assert refused(await ask(store.claim, key, grant.owner, grant.epoch, "n")) is Refused.TOO_NEW
        assert (await ask(store.read, key)).head == 2


async def test_a_record_says_in_which_schema_it_is(server, opened, client, ask, new_key, monkeypatch):
    async with opened(server.url) as store:
        monkeypatch.setattr(record, "READS", (1, 3))
        await eventually(lambda: store.schema == 3)
        key = new_key()
        grant = await ask(store.create, key, {})
        assert client.hget(f"sd:{{{key}}}:s", "v") == b"3"
        client.delete(f"sd:{{{key}}}:s")
        assert await ask(store.restore, key, grant, 1, Record(grant.owner, grant.epoch, 1, 0, {}, {}, {}, {})) is None
        assert client.hget(f"sd:{{{key}}}:s", "v") == b"3"


async def test_a_record_that_makes_no_sense_is_gone_and_harms_nothing(server, opened, client, session, ask):
    lines = Lines()
    async with opened(server.url, log=lines) as store:
        key, grant = await session(store)
        client.hset(f"sd:{{{key}}}:s", "rev", "nonsense")
        assert refused(await ask(store.read, key)) is Refused.GONE
        client.delete(f"sd:{{{key}}}:s")
        client.set(f"sd:{{{key}}}:s", "not a hash")
        assert refused(await ask(store.touch, key, grant)) is Refused.AWAY
        assert not isinstance(await ask(store.create, key[::-1], {}), Failed)
    assert "store_error" in [event for event, _ in lines.events]


# Replay


async def test_a_hole_in_a_log_is_never_passed_over_in_silence(server, opened, client, session, ask):
    async with opened(server.url) as store:
        key, grant = await session(store)
        await ask(store.append, key, grant, "p1", 2, [b"2", b"3", b"4"])
        client.xdel(f"sd:{{{key}}}:l:p1", f"{grant.epoch}-3")
        replay = await store.replay(key, "p1", grant.epoch, 1, 10)
        assert [entry.seq for entry in replay.entries] == [2]
        outcome = await store.replay(key, "p1", grant.epoch, 2, 10)
        assert (refused(outcome), outcome.head) == (Refused.SEQ, 4)


async def test_a_hole_that_the_floor_explains_is_told_and_passed(server, opened, client, session, ask):
    async with opened(server.url) as store:
        key, grant = await session(store)
        await ask(store.append, key, grant, "p1", 2, [b"2", b"3", b"4"])
        record = f"sd:{{{key}}}:s"
        head = client.hget(record, "h:p1").split()
        client.hset(record, "h:p1", b" ".join([*head[:4], b"3", *head[5:]]))
        for seq in (2, 3):
            client.xdel(f"sd:{{{key}}}:l:p1", f"{grant.epoch}-{seq}")
        expected = [LogEntry(grant.epoch, 4, b"4")]
        for cursor in (1, 2):
            replay = await store.replay(key, "p1", grant.epoch, cursor, 10)
            assert (list(replay.entries), replay.lost) == (expected, (cursor, 4))


async def test_a_cursor_of_a_lost_history_is_refused(server, opened, session, ask):
    """After a failover a new owner reuses numbers: 7-10 is not an event of a log 7-8, 8-9, 8-10."""
    async with opened(server.url) as store:
        key, old = await session(store)
        grant, _ = await ask(store.claim, key, old.owner, old.epoch, "n")
        await ask(store.append, key, grant, "p1", 2, [b"2", b"3"])
        assert refused(await store.replay(key, "p1", old.epoch, 3, 10)) is Refused.GONE


async def test_a_cancelled_replay_leaves_the_store_usable(start_server, opened, session):
    server = start_server()
    async with opened(server.url) as store:
        key, grant = await session(store)
        server.pause()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(store.replay, key, "p1", grant.epoch, 0, 10)
            await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        server.go_on()
        assert await data_of(store, key) == [b"1"]


# Start


async def test_a_store_that_does_not_answer_is_named(opened):
    with pytest.raises(StoreUnreachable, match=r"no Redis answers at redis://127\.0\.0\.1:1/0"):
        async with opened("redis://user:secret@127.0.0.1:1/0"):
            pass


async def test_wrong_credentials_are_told_without_the_password(start_server, opened):
    server = start_server("--requirepass", "right")
    for url in (server.url, f"redis://:wrong@127.0.0.1:{server.port}/0"):
        with pytest.raises(StoreDenied, match="give user and password in the store URL") as error:
            async with opened(url):
                pass
        assert "wrong@" not in str(error.value)
    async with opened(f"redis://:right@127.0.0.1:{server.port}/0") as store:
        assert store.state == "ok"


async def test_an_old_redis_is_refused(server, opened, monkeypatch):
    monkeypatch.setattr(checks, "OLDEST", (99, 0))
    with pytest.raises(StoreTooOld, match=r"needs 7\.0 or later"):
        async with opened(server.url):
            pass


async def test_a_redis_that_does_not_speak_the_protocol_is_refused(opened):
    async def answer(stream):
        async for _ in stream:
            await stream.send_all(b"-ERR unknown command 'HELLO', with args beginning with: '3' \r\n")

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(
            lambda task_status: trio.serve_tcp(answer, 0, host="127.0.0.1", task_status=task_status)
        )
        with pytest.raises(StoreTooOld, match=r"does not speak the protocol of Redis 7 \(HELLO 3\)"):
            async with opened(f"redis://127.0.0.1:{listener.socket.getsockname()[1]}/0"):
                pass
        nursery.cancel_scope.cancel()


async def test_a_replica_is_refused_and_its_primary_named(start_server, opened):
    server = start_server("--replicaof", "127.0.0.1", "1")
    with pytest.raises(StoreError, match=r"is a replica, which takes no writes: name its primary \(127\.0\.0\.1:1\)"):
        async with opened(server.url):
            pass


@pytest.mark.parametrize("url", ["http://x", "redis://h:port/0", "redis://h?nonsense=1", "redis+sentinel://h", "", "x"])
async def test_a_url_that_is_not_understood_is_an_error_of_its_own(opened, url):
    with pytest.raises(StoreUrlError):
        async with opened(url):
            pass


async def test_settings_that_lose_data_are_warned_of(start_server, opened):
    server = start_server("--maxmemory-policy", "allkeys-lru")
    lines = Lines()
    async with opened(server.url, log=lines):
        pass
    assert [event for event, _ in lines.events] == ["store_may_evict", "store_not_persistent"]


async def test_a_unix_socket_will_do(server, opened, session):
    async with opened(server.socket_url + "?db=3") as store:
        key, _ = await session(store)
        assert await data_of(store, key) == [b"1"]
