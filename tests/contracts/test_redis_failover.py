"""A primary that dies or hangs under the store, and the replica that a sentinel promotes."""

from functools import partial
from typing import Any

import pytest
import trio

from actors.ports import Deltas, Failed, Refused, Replay
from actors.protocol.table import Limits
from gateway.store.redis import targets
from gateway.store.redis.keys import alive_key
from tests.support.patience import PATIENCE
from tests.support.store_calls import Letters, Outcomes, data_of, eventually, refused

pytestmark = pytest.mark.redis


@pytest.fixture
async def pair(start_server, start_sentinel, until, monkeypatch):
    """A primary, its replica, and the sentinel that watches them."""
    monkeypatch.setattr(targets, "REPLY_TIMEOUT", 0.3)
    primary = start_server("--repl-diskless-sync-delay", "0")
    replica = start_server("--replicaof", "127.0.0.1", str(primary.port))
    with primary.client() as client:
        await until(lambda: client.set("sync", 1) and client.execute_command("WAIT", 1, 100) == 1)
    return primary, replica, await start_sentinel(primary.port, replicas=1)


def cut_off(primary):
    """The replica hears nothing more of its primary, and goes on as it is."""
    with primary.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")


async def test_what_waits_for_a_primary_that_hangs_is_written_to_the_next_one_once(pair, opened, session, ask):
    primary, replica, sentinel = pair
    async with opened(sentinel.url) as store:
        key, grant = await session(store)
        with primary.client() as client:
            assert client.execute_command("WAIT", 1, 5000) == 1
        primary.pause()
        done = Outcomes()
        for seq in (2, 3):
            store.append(key, grant, "p1", seq, [b"%d" % seq], done, deltas=Deltas(fields={"last": b"%d" % seq}))
        assert await done.wait(2) == [None, None]
        assert sentinel.primary() == replica.port
        primary.go_on()  # with the same appends in its buffers
        assert await ask(store.append, key, grant, "p1", 4, [b"4"]) is None
        assert await data_of(store, key) == [b"1", b"2", b"3", b"4"]
        assert (await ask(store.read, key)).fields["last"] == b"3"


async def test_a_primary_that_wakes_after_the_failover_is_left(pair, opened, session, ask, until, monkeypatch):
    """It takes itself for the primary until its sentinel comes to it, and that may take a while."""
    primary, replica, sentinel = pair
    monkeypatch.setattr(targets, "REPLY_TIMEOUT", 60.0)  # whoever asked it hears of it, when it wakes
    with primary.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-replicaof", "-slaveof")
    async with opened(sentinel.url) as store:
        key, grant = await session(store)
        assert isinstance(await store.replay(key, "p1", grant.epoch, 0, 10), Replay)
        with primary.client() as client:
            assert client.execute_command("WAIT", 1, 5000) == 1
        primary.pause()
        done = Outcomes()
        store.append(key, grant, "p1", 2, [b"2"], done)
        await until(lambda: sentinel.primary() == replica.port)
        primary.go_on()
        assert await done.wait(1) == [None]
        with replica.client() as client:
            await until(lambda: client.exists(alive_key(store.incarnation)) and client.role()[0] == b"master")
            client.delete(alive_key(store.incarnation))
            await until(lambda: client.exists(alive_key(store.incarnation)))
        assert await ask(store.append, key, grant, "p1", 3, [b"3"]) is None
        with replica.client() as client:
            assert client.xlen(f"sd:{{{key}}}:l:p1") == 3, "what it has acknowledged as it woke was not believed"
        assert await data_of(store, key) == [b"1", b"2", b"3"]
        assert await ask(store.alive, "nobody") is False


async def test_lost_acknowledged_events_are_told_and_never_passed_over(
    pair, opened, session, ask, new_key, lives_through
):
    primary, replica, sentinel = pair
    async with opened(sentinel.url) as store:
        key, grant = await session(store)
        with primary.client() as client:
            assert client.execute_command("WAIT", 1, 5000) == 1
        cut_off(primary)
        assert await ask(store.append, key, grant, "p1", 2, [b"2", b"3"]) is None
        lost, lost_grant = await session(store)
        with replica.client() as client:
            assert client.xlen(f"sd:{{{key}}}:l:p1") == 1, "nothing is lost"
            assert not client.exists(f"sd:{{{lost}}}:s"), "nothing is lost"
        primary.kill()
        outcome = await ask(store.append, key, grant, "p1", 4, [b"4"])
        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.head) == (Refused.SEQ, 1)
        assert sentinel.primary() == replica.port
        # On a loaded machine the sentinel takes the new primary for dead, too, for a moment.
        with trio.fail_after(PATIENCE):
            while (reason := refused(await store.replay(key, "p1", grant.epoch, 3, 10))) is Refused.AWAY:
                await trio.sleep(0.1)
        assert reason is Refused.GONE
        assert await data_of(store, key) == [b"1"]
        assert refused(await ask(store.append, lost, lost_grant, "p1", 2, [b"2"])) is Refused.GONE
        await lives_through(store, ask, new_key())


async def test_under_traffic_every_event_is_there_once_or_its_loss_is_told(pair, opened, session):
    """Replication is asynchronous: what was acknowledged in the last moment may be lost, and then it is said."""
    primary, replica, sentinel = pair
    async with opened(sentinel.url, Limits(log_events=100_000)) as store:
        sessions = [await session(store) for _ in range(8)]
        ended = [trio.Event() for _ in sessions]
        acknowledged = [1] * len(sessions)
        ends: list[Any] = [None] * len(sessions)
        promoted = False

        def step(index: int, seq: int, outcome: Any = None) -> None:
            if outcome is None:
                acknowledged[index] = seq - 1
            if outcome is not None or (promoted and store.state == "ok"):
                ends[index] = outcome
                return ended[index].set()
            key, grant = sessions[index]
            return store.append(key, grant, "p1", seq, [b"%d" % seq], partial(step, index, seq + 1))

        for index in range(len(sessions)):
            step(index, 2)
        await eventually(lambda: min(acknowledged) > 20)
        primary.kill()
        with trio.fail_after(PATIENCE):
            while sentinel.primary() != replica.port:
                await trio.sleep(0.05)
            promoted = True
            for event in ended:
                await event.wait()
        for (key, _), said, count in zip(sessions, ends, acknowledged, strict=True):
            there = await data_of(store, key)
            assert there == [b"%d" % seq for seq in range(1, len(there) + 1)]
            if said is None:
                assert len(there) == count > 20
            else:
                assert (said.reason, said.head) == (Refused.SEQ, len(there))
                assert len(there) < count


async def test_no_letter_comes_twice_or_after_it_was_withdrawn(pair, opened, ask):
    """Letters that the promoted replica had not heard of are lost, and how far they were read may be."""
    primary, replica, sentinel = pair
    async with opened(sentinel.url) as one, opened(sentinel.url) as two:
        heard, posted, promoted, ended = Letters(), [], [False], trio.Event()
        two.subscribe(heard)

        def post(number: int) -> None:
            to, letter = two.incarnation, b"%d" % number

            def next_one(outcome: Any) -> None:
                posted.append((to, letter, outcome))
                if promoted[0] and isinstance(outcome, str):
                    ended.set()
                else:
                    # Not at once: where nobody lives the refusal comes before the call returns.
                    trio.lowlevel.current_trio_token().run_sync_soon(post, number + 1)

            one.post(to, letter, next_one)

        post(1)
        await trio.sleep(0.3)
        primary.kill()
        with trio.fail_after(PATIENCE):
            while sentinel.primary() != replica.port:
                await trio.sleep(0.05)
            promoted[0] = True
            await ended.wait()
        assert heard.all
        await eventually(lambda: heard.all[-1] == posted[-1][1])
        assert [int(letter) for letter in heard.all] == sorted({int(letter) for letter in heard.all})
        for to, letter, outcome in posted[-200:]:
            if isinstance(outcome, str) and await ask(one.withdraw, to, outcome) is True:
                assert letter not in heard.all
