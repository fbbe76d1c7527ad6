"""What a GET stream had still to say of changes when it lost its reader is said on the next one."""

import pytest

from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.session.record import read_box
from actors.machines.session.state import Boxed, Rules
from tests.protocol.machines.driving import SessionDriver, all_of, only, said

CHANGED = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"


def leave(session: SessionDriver, stream: str, written: int) -> list:
    return session.step(ev.Detached(session.last, stream, written))


def methods(effects: list) -> list:
    return [(stream, message["method"]) for stream, message in said(effects)]


def test_a_fresh_get_repeats_what_was_never_written_on_the_one_before(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    session.tell(None, UPDATED, uri="x:1")
    leave(session, "g1", 1)
    assert methods(session.get()) == [("g2", CHANGED), ("g2", UPDATED)]


def test_what_was_written_is_not_repeated(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    session.tell(None, PROMPTS)
    assert leave(session, "g1", 3) == []
    assert methods(session.get()) == []


def test_only_the_part_that_was_not_written_is_repeated_and_each_thing_once(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    session.tell(None, PROMPTS)
    session.tell(None, PROMPTS)
    leave(session, "g1", 2)
    assert methods(session.get()) == [("g2", PROMPTS)]


def test_chatter_is_not_repeated(session: SessionDriver) -> None:
    session.get()
    session.tell(None, "notifications/message", level="error", data="x")
    assert leave(session, "g1", 1) == []
    assert methods(session.get()) == []


def test_who_resumes_gets_it_from_the_log_and_not_twice(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    leave(session, "g1", 1)
    effects = session.get("g1", seq=1)
    assert only(fx.Follow, effects).head == 2
    assert methods(effects) == []
    assert leave(session, "g1", 2) == []


def test_who_resumes_in_vain_loses_nothing(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    leave(session, "g1", 1)
    session.get("g1", seq=1)
    leave(session, "g1", 0)
    assert methods(session.get()) == [("g2", CHANGED)]


def test_what_the_client_has_by_its_own_words_is_not_repeated(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    leave(session, "g1", 1)
    session.get("g1", seq=2)
    leave(session, "g1", 0)
    assert methods(session.get()) == []


def test_what_is_repeated_is_followed_on_its_next_stream_too(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    leave(session, "g1", 1)
    session.get()
    leave(session, "g2", 1)
    assert methods(session.get()) == [("g3", CHANGED)]


def test_another_reader_that_is_there_hears_of_it_at_once(session: SessionDriver) -> None:
    session.get()
    first = session.last
    session.tell(None, CHANGED)
    session.get()
    assert methods(session.step(ev.Detached(first, "g1", 1))) == [("g2", CHANGED)]


def test_it_is_in_the_record_while_nobody_reads(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    saved = only(fx.Save, leave(session, "g1", 1)).fields["box"]
    assert [(b.key, b.stream, b.seq) for b in read_box(saved)] == [(CHANGED, "g1", 2)]
    assert only(fx.Save, session.get()).fields == {"box": None}


def test_a_stream_whose_log_is_lost_gives_back_what_was_not_written(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    session.step(ev.StreamFailed("g1", "full"))
    assert methods(session.get()) == [("g2", CHANGED)]


def test_a_drain_leaves_it_to_the_next_owner(session: SessionDriver) -> None:
    session.get()
    session.tell(None, CHANGED)
    effects = session.step(ev.DrainStarted())
    assert [b.key for b in read_box(all_of(fx.Save, effects)[-1].fields["box"])] == [CHANGED]


@pytest.mark.parametrize("rules", [Rules(box=3), Rules(box_bytes=300)])
def test_what_is_kept_for_a_connection_is_bounded_and_the_oldest_goes_first(rules: Rules) -> None:
    driver = SessionDriver(rules=rules).initialize()
    driver.get()
    for n in range(20):
        driver.tell(None, UPDATED, uri=f"x:{n}")
    kept = driver.session.streams["g1"].unread
    assert 1 <= len(kept) <= 3
    assert kept[-1].key == f"{UPDATED} x:19"


def test_a_box_that_was_written_without_streams_can_be_read() -> None:
    assert read_box(b'[["k",{"a":1}]]') == (Boxed("k", b'{"a":1}'),)
