"""The contract of the store port, on both of its implementations."""

from typing import Any

import pytest

from actors.ports import NO_DELTAS, Deltas, Failed, Grant, Head, LogEntry, Record, Refused, Replay, StreamHead
from tests.contracts.conftest import PATIENT
from tests.support.store_calls import refused


def seqs(outcome: Any) -> list[int]:
    assert isinstance(outcome, Replay), outcome
    return [entry.seq for entry in outcome.entries]


# Records


async def test_a_created_session_is_owned_by_this_incarnation(world, ask, new_key):
    key = new_key()
    grant = await ask(world.store.create, key, {"state": b"a", "bytes": bytes(range(256))})
    assert grant.owner == world.store.owner
    assert await ask(world.store.read, key) == Record(
        grant.owner, grant.epoch, fields={"state": b"a", "bytes": bytes(range(256))}
    )


async def test_a_key_is_created_once(world, ask):
    assert refused(await ask(world.store.create, world.key, {})) is Refused.EXISTS


async def test_nothing_but_create_makes_a_session(world, ask, new_key):
    store, key, grant = world.store, new_key(), Grant(world.store.owner, 1)
    outcomes = [
        await ask(store.read, key),
        await ask(store.claim, key, None, 0, "n"),
        await ask(store.open, key, grant, "p1", {}, None),
        await ask(store.append, key, grant, "p1", 1, [b"x"]),
        await ask(store.save, key, grant, 1, NO_DELTAS),
        await ask(store.touch, key, grant),
        await ask(store.drop, key, grant, "p1"),
        await ask(store.trim, key, grant, "p1", 1),
        await ask(store.mend, key, grant, "p1", 1),
        await ask(store.release, key, grant),
        await ask(store.end, key, grant, "why"),
        await store.replay(key, "p1", 0, 0, 10),
    ]
    assert {refused(outcome) for outcome in outcomes} == {Refused.GONE}
    store.written(key, grant, "p1")
    assert await ask(store.delete, key, grant) is None
    assert refused(await ask(store.read, key)) is Refused.GONE


@pytest.mark.parametrize("stale", ["owner", "epoch"])
async def test_every_write_of_another_owner_or_epoch_is_fenced(world, ask, stale):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    before = await ask(store.read, key)
    other = Grant("0" * 16, grant.epoch) if stale == "owner" else Grant(grant.owner, grant.epoch - 1)
    outcomes = [
        await ask(store.open, key, other, "p2", {"r": b"1"}, b"x"),
        await ask(store.append, key, other, "p1", 2, [b"x"]),
        await ask(store.append, key, other, "p1", 1, [b"one"]),
        await ask(store.save, key, other, 2, Deltas(fields={"state": b"bad"})),
        await ask(store.touch, key, other),
        await ask(store.drop, key, other, "p1"),
        await ask(store.release, key, other),
        await ask(store.end, key, other, "why"),
        await ask(store.delete, key, other),
    ]
    assert {refused(outcome) for outcome in outcomes} == {Refused.FENCED}
    assert await ask(store.read, key) == before


@pytest.mark.parametrize("stale", ["owner", "epoch"])
async def test_so_are_what_trims_marks_and_mends(world, ask, stale):
    store, key, grant = world.store, world.key, world.grant
    other = Grant("0" * 16, grant.epoch) if stale == "owner" else Grant(grant.owner, grant.epoch - 1)
    for stream in ("p1", "p2"):
        await ask(store.open, key, grant, stream, {}, b"one")
        await ask(store.append, key, grant, stream, 2, [b"two"])
    await ask(store.append, key, grant, "p2", 3, [b"three"], finish=True)
    before = await ask(store.read, key)
    outcomes = [await ask(store.trim, key, other, "p1", 2), await ask(store.mend, key, other, "p1", 9)]
    assert {refused(outcome) for outcome in outcomes} == {Refused.FENCED}
    store.written(key, other, "p2")
    assert await ask(store.read, key) == before
    store.written(key, grant, "p2")
    assert await ask(store.read, key) != before


async def test_a_save_changes_fields_requests_and_asked_and_clears_tries(world, ask):
    store, key = world.store, world.key
    grant, record = await ask(store.claim, key, world.grant.owner, world.grant.epoch, "n")
    assert record.tries == 1
    sets = Deltas(fields={"a": b"1", "b": b"2"}, requests={"7": b"r"}, asked={"9": b"o"})
    assert await ask(store.save, key, grant, 2, sets) is None
    assert (
        await ask(store.save, key, grant, 3, Deltas(fields={"a": None}, requests={"7": None}, asked={"8": b"p"}))
        is None
    )
    record = await ask(store.read, key)
    assert (record.rev, record.tries) == (3, 0)
    assert record.fields == {"state": b"new", "b": b"2"}
    assert (record.requests, record.asked) == ({}, {"9": b"o", "8": b"p"})


async def test_a_repeated_save_is_the_same_and_any_other_revision_is_refused(world, ask):
    store, key, grant = world.store, world.key, world.grant
    change = Deltas(fields={"a": b"1"})
    assert await ask(store.save, key, grant, 2, change) is None
    assert await ask(store.save, key, grant, 2, change) is None
    for rev in (1, 4):
        outcome = await ask(store.save, key, grant, rev, NO_DELTAS)
        assert (refused(outcome), outcome.head) == (Refused.SEQ, 2)
    assert (await ask(store.read, key)).rev == 2


# Ownership


async def test_a_claim_by_its_own_process_takes_a_higher_epoch_and_fences_the_old_one(world, ask):
    store, key, old = world.store, world.key, world.grant
    grant, record = await ask(store.claim, key, old.owner, old.epoch, "nonce")
    assert grant.epoch > old.epoch
    assert (record.owner, record.epoch, record.tries, record.fields) == (grant.owner, grant.epoch, 1, {"state": b"new"})
    assert refused(await ask(store.touch, key, old)) is Refused.FENCED
    assert await ask(store.touch, key, grant) is None


async def test_a_claim_repeated_with_its_nonce_gets_the_same_grant_and_counts_once(world, ask):
    store, key, old = world.store, world.key, world.grant
    first = await ask(store.claim, key, old.owner, old.epoch, "nonce")
    assert await ask(store.claim, key, old.owner, old.epoch, "nonce") == first


async def test_a_claim_that_expects_what_has_moved_on_is_fenced(world, ask):
    store, key, old = world.store, world.key, world.grant
    assert refused(await ask(store.claim, key, None, old.epoch, "n1")) is Refused.FENCED
    assert refused(await ask(store.claim, key, old.owner, old.epoch - 1, "n2")) is Refused.FENCED
    assert not isinstance(await ask(store.claim, key, old.owner, old.epoch, "n3"), Failed)
    assert refused(await ask(store.claim, key, old.owner, old.epoch, "n4")) is Refused.FENCED


async def test_tries_count_claims_without_a_save(world, ask):
    store, key, grant = world.store, world.key, world.grant
    for tries in (1, 2, 3):
        grant, record = await ask(store.claim, key, grant.owner, grant.epoch, f"n{tries}")
        assert record.tries == tries


async def test_a_session_that_lives_in_the_process_is_claimed_again_without_a_try(world, ask):
    store, key, grant = world.store, world.key, world.grant
    grant, record = await ask(store.claim, key, grant.owner, grant.epoch, "n1")
    for n in range(3):
        grant, record = await ask(store.claim, key, grant.owner, grant.epoch, f"lives{n}", lives=True)
    assert (record.epoch, record.tries) == (grant.epoch, 1)


async def test_a_released_session_keeps_its_record_and_is_claimed_as_free(world, ask):
    store, key, grant = world.store, world.key, world.grant
    assert await ask(store.release, key, grant) is None
    assert await ask(store.release, key, grant) is None
    assert refused(await ask(store.touch, key, grant)) is Refused.FENCED
    record = await ask(store.read, key)
    assert (record.owner, record.epoch, record.fields) == (None, grant.epoch, {"state": b"new"})
    again, _ = await ask(store.claim, key, None, grant.epoch, "n")
    assert again.epoch > grant.epoch
    assert refused(await ask(store.release, key, grant)) is Refused.FENCED


async def test_an_ended_session_refuses_everything_for_good(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    assert await ask(store.end, key, grant, "deleted") is None
    outcomes = [
        await ask(store.read, key),
        await ask(store.claim, key, grant.owner, grant.epoch, "n"),
        await ask(store.open, key, grant, "p2", {}, None),
        await ask(store.append, key, grant, "p1", 2, [b"x"]),
        await ask(store.save, key, grant, 2, NO_DELTAS),
        await ask(store.touch, key, grant),
        await ask(store.drop, key, grant, "p1"),
        await ask(store.trim, key, grant, "p1", 1),
        await ask(store.mend, key, grant, "p1", 9),
        await ask(store.release, key, grant),
        await ask(store.end, key, Grant("0" * 16, grant.epoch), "again"),
        await ask(store.delete, key, grant),
    ]
    assert {refused(outcome) for outcome in outcomes} == {Refused.ENDED}
    assert refused(await store.replay(key, "p1", 0, 0, 10)) is Refused.GONE
    assert refused(await ask(store.create, key, {})) is Refused.EXISTS
    assert await ask(store.end, key, grant, "deleted") is None


async def test_of_a_deleted_record_nothing_is_left_and_its_next_life_has_a_higher_epoch(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    assert await ask(store.delete, key, grant) is None
    assert await ask(store.delete, key, grant) is None
    assert refused(await ask(store.read, key)) is Refused.GONE
    assert refused(await ask(store.touch, key, grant)) is Refused.GONE
    await world.pass_time(0.01)
    again = await ask(store.create, key, {"state": b"new"})
    assert again.epoch > grant.epoch
    assert (await ask(store.read, key)).streams == {}
    assert refused(await ask(store.delete, key, grant)) is Refused.FENCED
    assert refused(await store.replay(key, "p1", 0, 0, 10)) is Refused.GONE


# Logs


async def test_events_are_replayed_after_a_cursor_in_order(world, ask):
    store, key, grant = world.store, world.key, world.grant
    assert await ask(store.open, key, grant, "p1", {"r1": b"q"}, b"") is None
    assert await ask(store.append, key, grant, "p1", 2, [b"two", b"three"]) is None
    assert (
        await ask(store.append, key, grant, "p1", 4, [b"four"], finish=True, deltas=Deltas(requests={"r1": None}))
        is None
    )
    replay = await store.replay(key, "p1", grant.epoch, 1, 10)
    entries = [LogEntry(grant.epoch, 2, b"two"), LogEntry(grant.epoch, 3, b"three"), LogEntry(grant.epoch, 4, b"four")]
    assert (list(replay.entries), replay.head, replay.finished, replay.lost) == (entries, 4, True, None)
    assert seqs(await store.replay(key, "p1", 0, 0, 10)) == [1, 2, 3, 4]
    assert seqs(await store.replay(key, "p1", grant.epoch, 1, 2)) == [2, 3]
    assert seqs(await store.replay(key, "p1", grant.epoch, 4, 10)) == []


async def test_the_record_shows_streams_and_their_requests(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {"r1": b"q", "r2": b"s"}, b"")
    await ask(store.open, key, grant, "g1", {}, None)
    await ask(store.append, key, grant, "p1", 2, [b"x"], finish=True, deltas=Deltas(requests={"r1": None}))
    record = await ask(store.read, key)
    assert record.requests == {"r2": b"s"}
    assert record.streams == {"p1": StreamHead(2, finished=True), "g1": StreamHead(0)}


async def test_a_repeated_open_is_the_same_and_another_one_of_that_name_is_refused(world, ask):
    store, key, grant = world.store, world.key, world.grant
    assert await ask(store.open, key, grant, "p1", {"r": b"1"}, b"x") is None
    assert await ask(store.append, key, grant, "p1", 2, [b"y"]) is None
    assert await ask(store.open, key, grant, "p1", {"r": b"1"}, b"x") is None
    assert refused(await ask(store.open, key, grant, "p1", {"r": b"1"}, None)) is Refused.EXISTS
    assert refused(await ask(store.open, key, grant, "p1", {"r": b"2"}, b"x")) is Refused.EXISTS
    assert seqs(await store.replay(key, "p1", 0, 0, 10)) == [1, 2]


async def test_an_append_is_written_once_however_often_it_is_sent(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    for _ in range(3):
        assert await ask(store.append, key, grant, "p1", 2, [b"two", b"three"], finish=True) is None
    assert [entry.data for entry in (await store.replay(key, "p1", 0, 0, 10)).entries] == [b"one", b"two", b"three"]


async def test_an_append_that_overlaps_the_head_adds_what_is_missing(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    await ask(store.append, key, grant, "p1", 2, [b"two"])
    assert await ask(store.append, key, grant, "p1", 1, [b"one", b"two", b"three"]) is None
    assert [entry.data for entry in (await store.replay(key, "p1", 0, 0, 10)).entries] == [b"one", b"two", b"three"]


async def test_an_append_that_would_leave_a_hole_is_refused_with_the_head(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    outcome = await ask(store.append, key, grant, "p1", 3, [b"three"], deltas=Deltas(fields={"state": b"bad"}))
    assert (refused(outcome), outcome.head) == (Refused.SEQ, 1)
    assert (await ask(store.read, key)).fields == {"state": b"new"}


async def test_a_finished_stream_takes_no_more_and_an_unknown_one_nothing(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    assert await ask(store.append, key, grant, "p1", 2, [], finish=True) is None
    assert await ask(store.append, key, grant, "p1", 2, [], finish=True) is None
    assert refused(await ask(store.append, key, grant, "p1", 2, [b"two"])) is Refused.FINISHED
    assert refused(await ask(store.append, key, grant, "p9", 1, [b"x"])) is Refused.GONE


async def test_numbers_go_on_over_a_claim_and_each_event_keeps_the_epoch_that_wrote_it(world, ask):
    store, key, old = world.store, world.key, world.grant
    await ask(store.open, key, old, "p1", {}, b"one")
    grant, record = await ask(store.claim, key, old.owner, old.epoch, "n")
    assert record.streams == {"p1": StreamHead(1)}
    await ask(store.append, key, grant, "p1", 2, [b"two"])
    replay = await store.replay(key, "p1", old.epoch, 1, 10)
    assert list(replay.entries) == [LogEntry(grant.epoch, 2, b"two")]
    assert refused(await ask(store.open, key, grant, "p1", {}, b"one")) is Refused.EXISTS


async def test_a_cursor_that_is_no_event_of_the_stream_is_gone(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    for stream, epoch, seq in [("p1", grant.epoch, 2), ("p1", grant.epoch - 1, 1), ("p2", grant.epoch, 1)]:
        assert refused(await store.replay(key, stream, epoch, seq, 10)) is Refused.GONE


async def test_a_trimmed_log_is_followed_from_what_stays_and_says_so_to_an_older_cursor(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "g1", {}, b"")
    await ask(store.append, key, grant, "g1", 2, [b"2", b"3", b"4", b"5"])
    assert await ask(store.trim, key, grant, "g1", 4) is None
    assert (await ask(store.read, key)).streams == {"g1": StreamHead(5, floor=3)}
    for cursor, left in [(4, [5]), (5, [])]:
        replay = await store.replay(key, "g1", grant.epoch, cursor, 10)
        assert (seqs(replay), replay.lost) == (left, None)
    for cursor in (0, 1, 2, 3):
        replay = await store.replay(key, "g1", grant.epoch if cursor else 0, cursor, 1)
        assert (list(replay.entries), replay.lost) == ([LogEntry(grant.epoch, 4, b"4")], (cursor, 4))
    assert refused(await store.replay(key, "g1", grant.epoch + 1, 2, 10)) is Refused.SEQ, "of another history"
    assert refused(await store.replay(key, "g1", grant.epoch - 1, 4, 10)) is Refused.GONE, "another life's"


async def test_a_trim_is_done_once_by_who_may_and_leaves_an_event(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "g1", {}, b"1")
    await ask(store.append, key, grant, "g1", 2, [b"2", b"3"])
    for seq in (2, 2, 1):
        assert await ask(store.trim, key, grant, "g1", seq) is None
        assert (await ask(store.read, key)).streams == {"g1": StreamHead(3, floor=1)}
    assert refused(await ask(store.trim, key, grant, "g1", 4)) is Refused.SEQ
    assert refused(await ask(store.trim, key, Grant(grant.owner, grant.epoch - 1), "g1", 3)) is Refused.FENCED
    assert await ask(store.trim, key, grant, "g2", 9) is None, "it is gone anyway"
    await ask(store.append, key, grant, "g1", 4, [], finish=True)
    assert await ask(store.trim, key, grant, "g1", 3) is None
    assert (await ask(store.read, key)).streams == {"g1": StreamHead(3, True, 1)}
    assert seqs(await store.replay(key, "g1", grant.epoch, 2, 10)) == [3]


async def test_what_was_trimmed_makes_room_in_events_and_bytes(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "g1", {}, b"x" * 5_000)
    for first in range(2, 60, 2):
        if first > 2:
            assert await ask(store.trim, key, grant, "g1", first - 1) is None
        assert await ask(store.append, key, grant, "g1", first, [b"x" * 20_000] * 2) is None, first
    assert refused(await ask(store.append, key, grant, "g1", 60, [b"x" * 2_000])) is Refused.FULL
    assert await ask(store.trim, key, grant, "g1", 59) is None
    assert await ask(store.append, key, grant, "g1", 60, [b""] * 11) is None
    assert refused(await ask(store.append, key, grant, "g1", 71, [b""])) is Refused.FULL


@pytest.mark.parametrize("how", ["drop", "expiry", "its name is taken"])
async def test_a_trimmed_log_that_goes_gives_back_what_it_held(world, ask, how):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"1")
    await ask(store.append, key, grant, "p1", 2, [b"x" * 5_000] * 10)
    assert await ask(store.trim, key, grant, "p1", 9) is None
    await ask(store.append, key, grant, "p1", 12, [], finish=True)
    if how == "drop":
        assert await ask(store.drop, key, grant, "p1") is None
    else:
        await world.pass_time(2.2)
    name = "p2" if how != "its name is taken" else "p1"
    assert await ask(store.open, key, grant, name, {}, b"") is None
    assert await ask(store.append, key, grant, name, 2, [b"x" * 5_400] * 11) is None
    assert refused(await ask(store.append, key, grant, name, 13, [b""])) is Refused.FULL


# Retention and caps


async def test_a_finished_log_is_kept_for_its_time_and_an_unfinished_one_as_long_as_its_session(world, ask):
    store, key, grant = world.store, world.key, world.grant
    for stream in ("p1", "p2"):
        await ask(store.open, key, grant, stream, {}, b"one")
    await ask(store.append, key, grant, "p1", 2, [b"two"], finish=True)
    assert seqs(await store.replay(key, "p1", grant.epoch, 1, 10)) == [2]
    await world.pass_time(2.2)
    assert refused(await store.replay(key, "p1", grant.epoch, 1, 10)) is Refused.GONE
    assert refused(await store.replay(key, "p1", 0, 0, 10)) is Refused.GONE
    assert (await ask(store.read, key)).streams == {"p2": StreamHead(1)}
    assert seqs(await store.replay(key, "p2", 0, 0, 10)) == [1]


async def test_a_log_that_was_written_whole_goes_sooner(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    store.written(key, grant, "p1")
    await ask(store.append, key, grant, "p1", 2, [b"two"], finish=True)
    store.written(key, grant, "p1")
    assert seqs(await store.replay(key, "p1", grant.epoch, 1, 10)) == [2]
    await world.pass_time(1.2)
    assert refused(await store.replay(key, "p1", grant.epoch, 1, 10)) is Refused.GONE


async def test_the_caps_refuse_events_but_let_a_small_answer_finish(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"")
    assert await ask(store.append, key, grant, "p1", 2, [b"x"] * 11) is None
    assert refused(await ask(store.append, key, grant, "p1", 13, [b"x"])) is Refused.FULL
    assert refused(await ask(store.open, key, grant, "p2", {}, b"")) is Refused.FULL
    assert refused(await ask(store.append, key, grant, "p1", 13, [b"x" * 20_000], finish=True)) is Refused.FULL
    assert await ask(store.append, key, grant, "p1", 13, [b"answer"], finish=True) is None
    assert seqs(await store.replay(key, "p1", 0, 0, 20)) == list(range(1, 14))


async def test_the_cap_in_bytes_counts_all_streams(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"x" * 30_000)
    await ask(store.open, key, grant, "p2", {}, b"x" * 29_000)
    assert refused(await ask(store.append, key, grant, "p1", 2, [b"x" * 1_001])) is Refused.FULL
    assert await ask(store.append, key, grant, "p1", 2, [b"x" * 1_000]) is None


async def test_a_finished_log_can_be_dropped_and_an_unfinished_one_is_never_cut(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"")
    await ask(store.open, key, grant, "p2", {}, b"")
    await ask(store.append, key, grant, "p1", 2, [b"x"] * 10, finish=True)
    assert refused(await ask(store.drop, key, grant, "p2")) is Refused.SEQ
    assert await ask(store.drop, key, grant, "p1") is None
    assert await ask(store.drop, key, grant, "p1") is None
    assert refused(await store.replay(key, "p1", grant.epoch, 1, 10)) is Refused.GONE
    assert await ask(store.append, key, grant, "p2", 2, [b"y" * 5_000] * 11) is None
    assert refused(await ask(store.append, key, grant, "p2", 13, [b""])) is Refused.FULL


patient = pytest.mark.parametrize("limits", [PATIENT], ids=["patient"])


async def finished(world, ask, *sizes):
    """Streams p1, p2, … that are finished, in this order, each with one event of so many bytes."""
    for number, size in enumerate(sizes, 1):
        await ask(world.store.open, world.key, world.grant, f"p{number}", {}, b"x" * size)
        await ask(world.store.append, world.key, world.grant, f"p{number}", 2, [], finish=True)
        await world.pass_time(0.01)


async def left(world, ask):
    return sorted((await ask(world.store.read, world.key)).streams)


@patient
async def test_for_want_of_room_written_logs_go_first_then_finished_ones_the_oldest_first(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await finished(world, ask, 10_000, 10_000, 10_000, 10_000)
    store.written(key, grant, "p3")
    await world.pass_time(0.01)
    store.written(key, grant, "p2")
    await ask(store.open, key, grant, "g1", {}, b"x" * 20_000)
    assert (await ask(store.read, key)).streams["p3"] == StreamHead(1, True, 0, True)
    for seq, there in enumerate([["p1", "p2", "p4"], ["p1", "p4"], ["p4"], []], 2):
        assert await ask(store.append, key, grant, "g1", seq, [b"y" * 10_000]) is None
        assert await left(world, ask) == ["g1", *there]
    assert refused(await ask(store.append, key, grant, "g1", 6, [b"y"])) is Refused.FULL


@patient
async def test_a_new_stream_finds_room_where_a_finished_one_has_it(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"")
    await ask(store.append, key, grant, "p1", 2, [b"x"] * 11, finish=True)
    assert await ask(store.open, key, grant, "p2", {}, b"") is None
    assert await left(world, ask) == ["p2"]
    assert await ask(store.append, key, grant, "p2", 2, [b"y"] * 11) is None


@patient
async def test_no_log_goes_in_vain(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await finished(world, ask, 10_000)
    await ask(store.open, key, grant, "g1", {}, b"x" * 40_000)
    assert refused(await ask(store.append, key, grant, "g1", 2, [b"y" * 20_001])) is Refused.FULL
    assert await left(world, ask) == ["g1", "p1"]
    assert await ask(store.append, key, grant, "g1", 2, [b"y" * 20_000]) is None


@patient
async def test_what_a_later_life_finds_says_what_was_written(world, ask):
    store, key = world.store, world.key
    await finished(world, ask, 10, 10)
    store.written(key, world.grant, "p1")
    await ask(store.release, key, world.grant)
    _, record = await ask(store.claim, key, None, world.grant.epoch, "n")
    assert {name: head.written for name, head in record.streams.items()} == {"p1": True, "p2": False}


async def test_a_stream_that_finished_without_an_event_may_be_dropped(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "g1", {}, None)
    assert await ask(store.append, key, grant, "g1", 1, [], finish=True) is None
    assert await store.replay(key, "g1", 0, 0, 10) == Replay([], 0, finished=True)
    assert await ask(store.drop, key, grant, "g1") is None
    assert (await ask(store.read, key)).streams == {}


async def test_a_stream_may_have_the_name_of_one_that_has_expired(world, ask):
    assert await ask(world.store.open, world.key, world.grant, "p1", {}, b"old") is None
    assert await ask(world.store.append, world.key, world.grant, "p1", 2, [b"end"], finish=True) is None
    await world.pass_time(2.2)
    assert await ask(world.store.open, world.key, world.grant, "p1", {"i:1": b"p1"}, b"new") is None
    replay = await world.store.replay(world.key, "p1", world.grant.epoch, 1, 10)
    assert (replay.head, replay.finished, list(replay.entries)) == (1, False, [])


async def test_logs_that_have_expired_make_room_by_themselves(world, ask):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"")
    await ask(store.append, key, grant, "p1", 2, [b"x"] * 11, finish=True)
    await world.pass_time(2.2)
    assert await ask(store.open, key, grant, "p2", {}, b"") is None
    assert await ask(store.append, key, grant, "p2", 2, [b"y"] * 11) is None


# Sessions that nobody has in memory


async def test_what_is_due_is_found_in_its_part_until_it_is_not_due_any_more(world, ask, new_key):
    store, soon, late = world.store, "7" + new_key()[1:], "7" + new_key()[1:]
    store.due_at(late, 2000.5)
    store.due_at(soon, 1000.25)
    assert await ask(store.due, 7, 1000.25) == []
    assert await ask(store.due, 7, 1000.5) == [soon]
    assert set(await ask(store.due, 7, 3000.0)) == {soon, late}
    assert await ask(store.due, 6, 3000.0) == []
    store.due_at(soon, 5000.0)
    store.due_at(late, None)
    assert await ask(store.due, 7, 3000.0) == []
    assert await ask(store.due, 7, 6000.0) == [soon]
    store.due_at(soon, None)


# Heads


async def test_heads_say_how_far_streams_are_and_whose_in_the_order_of_asking(world, ask, new_key):
    store, key, grant = world.store, world.key, world.grant
    await ask(store.open, key, grant, "p1", {}, b"one")
    await ask(store.append, key, grant, "p1", 2, [b"two", b"three"])
    await ask(store.open, key, grant, "g1", {}, None)
    await ask(store.open, key, grant, "p2", {}, b"one")
    await ask(store.append, key, grant, "p2", 2, [b"two"], finish=True)
    asked = [(key, "p2"), (key, "nope"), (key, "p1"), (new_key(), "p1"), (key, "g1")]
    finished, nope, live, nobody, empty = await ask(store.heads, asked)
    assert finished == Head(grant.owner, grant.epoch, 2, finished=True)
    assert live == Head(grant.owner, grant.epoch, 3)
    assert (empty.owner, empty.seq, empty.finished) == (grant.owner, 0, False)
    assert (nope, nobody) == (None, None)
    await ask(store.trim, key, grant, "p1", 3)
    await ask(store.release, key, grant)
    assert await ask(store.heads, [(key, "p1")]) == [Head(None, grant.epoch, 3, floor=2)]
    assert await ask(store.heads, []) == []
