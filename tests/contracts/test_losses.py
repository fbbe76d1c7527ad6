"""What an owner does when the store has lost what it had acknowledged: `mend` and `restore`, on both stores."""

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import trio

from actors.ports import NO_DELTAS, Failed, Grant, Record, Refused, Replay, StreamHead
from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore
from gateway.store.redis.scripts import SCRIPTS
from tests.support.patience import PATIENCE
from tests.support.store_calls import refused

MINE = Record("me", 7, fields={"a": b"1"}, requests={"r": b"q"}, asked={"o": b"u"}, streams={"p1": StreamHead(5)})


async def stream(world, ask, *data: bytes) -> None:
    assert await ask(world.store.open, world.key, world.grant, "p1", {}, data[0]) is None
    assert await ask(world.store.append, world.key, world.grant, "p1", 2, data[1:]) is None


async def replayed(world: Any, after: int, epoch: int = 0) -> tuple[list[int], tuple[int, int] | None]:
    outcome = await world.store.replay(world.key, "p1", epoch or world.grant.epoch, after, 100)
    assert isinstance(outcome, Replay), outcome
    return [entry.seq for entry in outcome.entries], outcome.lost


# Events were lost


async def test_a_mended_stream_goes_on_behind_what_was_acknowledged_and_says_the_hole(world, ask):
    await stream(world, ask, b"1", b"2", b"3")
    store, key, grant = world.store, world.key, world.grant
    assert (await ask(store.append, key, grant, "p1", 6, [b"6"])).head == 3
    assert await ask(store.mend, key, grant, "p1", 5) is None
    assert await replayed(world, 3) == ([], (3, 6))
    assert await ask(store.append, key, grant, "p1", 6, [b"6"]) is None
    assert await replayed(world, 0) == ([1, 2, 3], None)
    assert await replayed(world, 2) == ([3], None)
    assert await replayed(world, 3) == ([6], (3, 6))
    assert await replayed(world, 4) == ([6], (4, 6))
    assert await replayed(world, 6) == ([], None)


async def test_what_was_lost_is_never_written_again(world, ask):
    await stream(world, ask, b"1")
    store, key, grant = world.store, world.key, world.grant
    await ask(store.mend, key, grant, "p1", 3)
    assert await ask(store.append, key, grant, "p1", 2, [b"other", b"other"]) is None
    assert await replayed(world, 0) == ([1], None)
    assert await replayed(world, 1) == ([], (1, 4))


async def test_a_mend_again_or_of_less_changes_nothing(world, ask):
    await stream(world, ask, b"1", b"2")
    store, key, grant = world.store, world.key, world.grant
    await ask(store.mend, key, grant, "p1", 4)
    await ask(store.append, key, grant, "p1", 5, [b"5"])
    before = await ask(store.read, key)
    for head in (4, 2, 0):
        assert await ask(store.mend, key, grant, "p1", head) is None
    assert await ask(store.read, key) == before
    assert before.streams["p1"] == StreamHead(5, floor=4)


async def test_a_stream_that_was_lost_whole_is_mended_too(world, ask):
    store, key, grant = world.store, world.key, world.grant
    assert refused(await ask(store.append, key, grant, "p1", 4, [b"4"])) is Refused.GONE
    assert await ask(store.mend, key, grant, "p1", 3) is None
    assert await ask(store.append, key, grant, "p1", 4, [b"4"]) is None
    assert await replayed(world, 0) == ([4], (0, 4))
    assert await ask(store.append, key, grant, "p1", 5, [], finish=True) is None
    assert (await store.replay(key, "p1", grant.epoch, 4, 10)).finished


async def test_a_mended_log_can_be_trimmed_and_gives_its_room_back(world, ask):
    await stream(world, ask, b"x" * 20_000, b"x" * 20_000)
    store, key, grant = world.store, world.key, world.grant
    await ask(store.mend, key, grant, "p1", 4)
    assert await ask(store.append, key, grant, "p1", 5, [b"5", b"6"]) is None
    assert await ask(store.trim, key, grant, "p1", 6) is None
    assert await replayed(world, 0) == ([6], (0, 6))
    assert await ask(store.open, key, grant, "p2", {}, b"y" * 59_000) is None


async def test_a_finished_stream_is_not_mended(world, ask):
    await stream(world, ask, b"1")
    store, key, grant = world.store, world.key, world.grant
    await ask(store.append, key, grant, "p1", 2, [], finish=True)
    outcome = await ask(store.mend, key, grant, "p1", 4)
    assert (refused(outcome), outcome.head) == (Refused.FINISHED, 1)


async def test_only_its_owner_mends_a_stream(world, ask, new_key):
    await stream(world, ask, b"1")
    store, key, grant = world.store, world.key, world.grant
    assert refused(await ask(store.mend, key, Grant(grant.owner, grant.epoch - 1), "p1", 3)) is Refused.FENCED
    assert refused(await ask(store.mend, key, Grant("other", grant.epoch), "p1", 3)) is Refused.FENCED
    assert refused(await ask(store.mend, new_key(), grant, "p1", 3)) is Refused.GONE
    await ask(store.end, key, grant, "why")
    assert refused(await ask(store.mend, key, grant, "p1", 3)) is Refused.ENDED


@pytest.mark.parametrize("lost", ["nothing", "the head", "the record"])
async def test_the_beginning_of_a_stream_is_that_of_the_one_opened_then(world, ask, lost):
    """After a loss another one may have its name."""
    await stream(world, ask, b"1", b"2")
    store, key, first = world.store, world.key, world.grant
    heads = (await ask(store.read, key)).streams
    assert heads["p1"].opener == first.epoch
    grant, _ = await ask(store.claim, key, first.owner, first.epoch, "again")
    if lost == "the head":
        await ask(store.append, key, grant, "p1", 3, [], finish=True)
        await ask(store.drop, key, grant, "p1")
        assert await ask(store.mend, key, grant, "p1", 2, opener=first.epoch) is None
    elif lost == "the record":
        await ask(store.delete, key, grant)
        assert await ask(store.restore, key, grant, 9, replace(MINE, streams=heads)) is None
    left = [1, 2] if lost == "nothing" else []
    assert [e.seq for e in (await store.replay(key, "p1", first.epoch, 0, 9)).entries] == left
    assert isinstance(await store.replay(key, "p1", 0, 0, 9), Replay)
    assert refused(await store.replay(key, "p1", grant.epoch, 0, 9)) is Refused.GONE
    assert refused(await store.replay(key, "p1", first.epoch - 1, 0, 9)) is Refused.GONE


async def test_a_lost_event_older_than_a_stream_is_none_of_its_own(world, ask):
    """It was one of a stream that had the name before, and the lost ones of this one have its number."""
    await stream(world, ask, b"1")
    store, key, first = world.store, world.key, world.grant
    grant, _ = await ask(store.claim, key, first.owner, first.epoch, "again")
    assert await ask(store.open, key, grant, "p2", {}, b"1") is None
    assert await ask(store.mend, key, grant, "p2", 3) is None
    assert await ask(store.append, key, grant, "p2", 4, [b"4"]) is None
    assert [e.seq for e in (await store.replay(key, "p2", grant.epoch, 2, 9)).entries] == [4]
    assert refused(await store.replay(key, "p2", first.epoch, 2, 9)) is Refused.GONE


# The record was lost


async def test_a_lost_record_is_restored_with_all_of_its_events_lost(world, ask, new_key):
    world.key, world.grant = new_key(), Grant(world.store.owner, 7)
    store, key, grant = world.store, world.key, world.grant
    assert await ask(store.restore, key, grant, 9, MINE) is None
    record = await ask(store.read, key)
    assert record == Record(
        grant.owner, 7, 9, 0, MINE.fields, MINE.requests, MINE.asked, {"p1": StreamHead(5, floor=5)}
    )
    assert await replayed(world, 3) == ([], (3, 6))
    assert await ask(store.append, key, grant, "p1", 6, [b"6"]) is None
    assert await replayed(world, 3) == ([6], (3, 6))
    assert await ask(store.save, key, grant, 10, NO_DELTAS) is None


async def test_a_finished_stream_is_restored_as_one_that_lost_everything(world, ask, new_key):
    world.key, world.grant = new_key(), Grant(world.store.owner, 7)
    lost = Record("me", 7, streams={"p1": StreamHead(5, finished=True)})
    assert await ask(world.store.restore, world.key, world.grant, 1, lost) is None
    outcome = await world.store.replay(world.key, "p1", 7, 2, 10)
    assert (list(outcome.entries), outcome.finished, outcome.lost) == ([], True, (2, 6))
    await world.pass_time(2.1)
    assert (await ask(world.store.read, world.key)).streams == {}


async def test_a_record_of_a_lower_epoch_gives_way(world, ask):
    await stream(world, ask, b"1", b"2")
    later = Grant("me", world.grant.epoch + 1)
    assert await ask(world.store.restore, world.key, later, 1, MINE) is None
    record = await ask(world.store.read, world.key)
    assert (record.owner, record.epoch, record.fields) == ("me", later.epoch, MINE.fields)
    assert await replayed(world, 1) == ([], (1, 6))
    assert refused(await ask(world.store.touch, world.key, world.grant)) is Refused.FENCED


async def test_the_highest_epoch_wins(world, ask):
    store, key, grant = world.store, world.key, world.grant
    before = await ask(store.read, key)
    for lower in (Grant(grant.owner, grant.epoch - 1), Grant("other", grant.epoch)):
        assert refused(await ask(store.restore, key, lower, 99, MINE)) is Refused.FENCED
    assert await ask(store.read, key) == before


async def test_a_claim_after_a_loss_has_no_epoch_of_a_claim_that_was_lost(world, ask, new_key):
    """The record that is left knows only of a low one; the time of the store knows better."""
    store, key, mine = world.store, new_key(), Grant(world.grant.owner, 7)
    assert await ask(store.restore, key, mine, 9, MINE) is None
    grant, _ = await ask(store.claim, key, mine.owner, mine.epoch, "again")
    assert grant.epoch >= world.grant.epoch


async def test_of_a_record_that_lost_saves_the_values_are_restored_and_the_logs_stay(world, ask):
    await stream(world, ask, b"1", b"2")
    store, key, grant = world.store, world.key, world.grant
    assert refused(await ask(store.save, key, grant, 5, NO_DELTAS)) is Refused.SEQ
    assert await ask(store.open, key, grant, "p2", {"r": b"old", "s": b"stays"}, None) is None
    heads = {"p1": StreamHead(4), "g1": StreamHead(3), "p2": StreamHead(0)}
    lost = Record("", 0, fields={"b": b"2"}, requests={"r": b"new"}, streams=heads)
    assert await ask(store.restore, key, grant, 4, lost) is None
    record = await ask(store.read, key)
    assert (record.rev, record.fields, record.requests) == (4, {"b": b"2"}, {"r": b"new", "s": b"stays"})
    assert record.streams == {"p1": StreamHead(2), "g1": StreamHead(3, floor=3), "p2": StreamHead(0)}
    assert await replayed(world, 0) == ([1, 2], None)


async def test_a_restore_again_writes_nothing_over_what_came_after(world, ask, new_key):
    store, key, grant = world.store, new_key(), Grant("me", 7)
    await ask(store.restore, key, grant, 9, MINE)
    await ask(store.append, key, grant, "p1", 6, [b"6"])
    await ask(store.save, key, grant, 10, NO_DELTAS)
    before = await ask(store.read, key)
    assert await ask(store.restore, key, grant, 9, MINE) is None
    assert await ask(store.read, key) == before


async def test_a_tombstone_is_not_raised(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.end, key, grant, "why")
    assert await ask(store.restore, key, Grant("me", grant.epoch + 1), 9, MINE) == Failed(Refused.ENDED)
    assert refused(await ask(store.read, key)) is Refused.ENDED


# In Redis


@pytest.mark.redis
async def test_after_a_flush_the_owner_restores_and_goes_on(start_server, opened, session, ask):
    server = start_server()
    async with opened(server.url) as store:
        key, grant = await session(store)
        record = await ask(store.read, key)
        with server.client() as client:
            client.flushall()
            assert refused(await ask(store.append, key, grant, "p1", 2, [b"2"])) is Refused.GONE
            assert await ask(store.restore, key, grant, 1, record) is None
            assert await ask(store.append, key, grant, "p1", 2, [b"2"]) is None
            assert client.smembers(f"sd:r:{{{grant.owner}}}:owned") == {key.encode()}
            for name in (f"sd:{{{key}}}:s", f"sd:{{{key}}}:l:p1"):
                assert 2_390_000 < client.pttl(name) <= 2_400_000
            assert await ask(store.mend, key, grant, "g1", 3) is None
            assert await ask(store.append, key, grant, "g1", 4, [b"4"]) is None
            assert 2_390_000 < client.pttl(f"sd:{{{key}}}:l:g1") <= 2_400_000


# What its owner did may be more than is here


@pytest.mark.parametrize("kind", ["memory", pytest.param("redis", marks=pytest.mark.redis)])
async def test_a_record_is_older_than_what_its_owner_did_once_something_may_be_lost(kind, request, ask, new_key):
    """Until it is saved; who made it, or claimed it, after that has written what there is to write."""
    async with AsyncExitStack() as stack:
        if kind == "memory":
            store: Any = MemoryStore(Limits(), lambda: 1.0)
        else:
            server = request.getfixturevalue("start_server")(aof=True)
            store = await stack.enter_async_context(request.getfixturevalue("opened")(server.url))

        async def lose() -> None:
            if kind == "memory":
                store.lose(store.snapshot())
                return
            await trio.to_thread.run_sync(server.kill)
            await trio.to_thread.run_sync(server.start)

        async def claimed(grant: Grant, nonce: str, **more: Any) -> tuple[Grant, bool]:
            with trio.fail_after(PATIENCE):
                while isinstance(
                    outcome := await ask(store.claim, key, grant.owner, grant.epoch, nonce, **more), Failed
                ):
                    assert outcome.reason is Refused.AWAY
                    await trio.sleep(0.05)
            return outcome[0], outcome[1].older

        key = new_key()
        grant = await ask(store.create, key, {"state": b"new"})
        assert await ask(store.save, key, grant, 1, NO_DELTAS) is None
        grant, older = await claimed(grant, "1")
        assert not older
        await lose()
        for nonce in ("2", "3"):
            grant, older = await claimed(grant, nonce)
            assert older
            again, older = await claimed(grant, nonce)
            assert (again.epoch, older) == (grant.epoch, True)
        assert await ask(store.save, key, grant, 2, NO_DELTAS) is None
        grant, older = await claimed(grant, "4")
        assert not older
        await lose()
        grant, _ = await claimed(grant, "5", lives=True)
        assert await ask(store.save, key, grant, 3, NO_DELTAS) is None
        assert (await claimed(grant, "6"))[1] is False


@pytest.mark.redis
def test_a_redis_that_does_not_say_what_it_calls_its_data_keeps_sessions_all_the_same(start_server: Any) -> None:
    """As some hosted ones; such a record counts as no older than it looks."""
    with start_server().client() as client:
        client.acl_setuser("quiet", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
        client.execute_command("AUTH", "quiet", "any")
        key = "sd:{of-a-quiet-redis}:s"
        created = client.eval(SCRIPTS["create"].text, 1, key, "one", "nonce", 1, 60_000)
        claimed = client.eval(SCRIPTS["claim"].text, 1, key, "two", "other", "one", created[1], 1, 60_000, 1, 1)
        assert (created[0], claimed[0]) == (b"OK", b"OK")
        assert b"older" not in claimed[3]
