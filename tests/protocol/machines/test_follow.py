"""A stream that another process owns, as values: what is written, in which order, and what is said of a hole."""

from __future__ import annotations

from actors.machines.cluster.follow import (
    AskHead,
    Attached,
    CheckDue,
    Closed,
    Detach,
    Entry,
    Finish,
    Follow,
    FollowEffect,
    FollowEvent,
    Frames,
    Gap,
    HeadSaid,
    NoPage,
    NotAttached,
    OwnerLost,
    Page,
    Phase,
    ReadLog,
    Reattach,
    RetryDue,
    StartCheckClock,
    StartRetryClock,
    StopClocks,
    Superseded,
    Write,
    WriteEntries,
    begin,
    step,
)

E = 7


def entry(seq: int, epoch: int = E) -> Entry:
    return Entry(epoch, seq, b"log")


def frame(first: int, last: int | None = None, *, epoch: int = E, finished: bool = False) -> Frames:
    return Frames(epoch, first, last or first, b"mail %d" % first, finished)


def run(follow: Follow, *events: FollowEvent) -> tuple[Follow, list[FollowEffect]]:
    effects: list[FollowEffect] = []
    for event in events:
        follow, further = step(follow, event)
        effects += further
    return follow, effects


LIVE = step(begin(E, 10)[0], Page((), 10, False))[0]
OVER = [StopClocks(), Finish(True)]


def test_what_follows_is_written_and_what_is_doubled_or_late_is_not() -> None:
    follow, effects = run(LIVE, frame(11, 12), frame(11, 12), frame(12), frame(13))
    assert effects == [Write(b"mail 11"), Write(b"mail 13")]
    assert (follow.epoch, follow.seq) == (E, 13)


def test_a_hole_in_the_mail_is_read_from_the_log_with_all_that_came_meanwhile() -> None:
    follow, effects = run(LIVE, frame(12), frame(13))
    assert effects == [ReadLog(E, 10)]
    follow, effects = run(follow, Page((entry(11), entry(12)), 12, False))
    assert effects == [WriteEntries((entry(11), entry(12))), ReadLog(E, 12)], "13 was heard of"
    follow, effects = run(follow, Page((entry(13),), 13, False), frame(14))
    assert effects == [WriteEntries((entry(13),)), Write(b"mail 14")]


def test_frames_that_are_partly_written_are_read_from_the_log() -> None:
    assert run(LIVE, frame(10, 12))[1] == [ReadLog(E, 10)]


def test_the_last_event_ends_the_connection_by_mail_or_from_the_log() -> None:
    assert run(LIVE, frame(11, finished=True))[1] == [Write(b"mail 11"), *OVER]
    assert run(LIVE, frame(12), Page((entry(11), entry(12)), 12, True))[1][-2:] == OVER
    assert run(LIVE, frame(12), Page((entry(11),), 12, True))[1][-1] == ReadLog(E, 11), "there is more of it"


def test_an_end_whose_mail_was_lost_is_found_by_the_head() -> None:
    follow, effects = run(LIVE, CheckDue())
    assert effects == [StartCheckClock(), AskHead()]
    assert run(follow, HeadSaid(E, 10, True))[1] == OVER
    assert run(follow, HeadSaid(E, 12, True))[1] == [ReadLog(E, 10)]
    assert run(follow, HeadSaid(E, 10, False))[1] == []


def test_events_that_the_store_has_lost_are_not_passed_over() -> None:
    """The same numbers under another epoch are other events."""
    assert run(LIVE, frame(9, epoch=8))[1] == [ReadLog(E, 10)]
    assert run(LIVE, frame(11, epoch=6))[1] == [ReadLog(E, 10)], "of a former owner, and perhaps lost since"
    assert run(LIVE, HeadSaid(8, 10, False))[1] == [ReadLog(E, 10)]
    assert run(LIVE, HeadSaid(0, 10, False))[1] == [], "whose it is was not said"
    assert run(LIVE, HeadSaid(0, 10, True))[1] == [ReadLog(E, 10)], "an end must be that of this very event"
    assert run(LIVE, CheckDue(), HeadSaid(E, 8, False))[1][-1] == ReadLog(E, 10)
    assert run(LIVE, HeadSaid(E, 8, False))[1] == [], "said before the last ones came"
    over, effects = run(LIVE, frame(9, epoch=8), NoPage(passing=False))
    assert effects[1:] == [Gap(10, None), StopClocks(), Finish(False)]
    assert run(over, frame(11))[1] == []


def test_what_was_heard_of_and_is_not_in_the_log_is_lost_for_good() -> None:
    """Its owner may believe it written, and never look again."""
    empty = Page((), 10, False)
    for told in (frame(12), HeadSaid(0, 12, True)):
        assert run(LIVE, told, empty)[1] == [ReadLog(E, 10), Gap(10, None), StopClocks(), Finish(False)]


def test_an_owner_that_goes_on_behind_what_is_lost_is_followed_there() -> None:
    """It has said so as it took the reader on: the end of the stream is not among what is missing."""
    for follow in (begin(E, 10, head=12)[0], run(LIVE, OwnerLost(), Page((), 10, False), Attached(12))[0]):
        follow, effects = run(follow, Page((), 10, False))
        assert effects == [Gap(10, 13, known=False)]
        assert (follow.seq, follow.phase) == (12, Phase.LIVE)
        assert run(follow, frame(13))[1] == [Write(b"mail 13")]
        broken = [ReadLog(E, 10), Gap(10, None), StopClocks(), Finish(False)]
        began = begin(E, 10, head=12)[0]
        assert run(began, HeadSaid(0, 13, True), Page((), 10, False), Page((), 10, False))[1] == broken


def test_what_comes_while_the_log_is_read_may_be_written_after_it_was_read() -> None:
    """A page on its way says nothing of it."""
    follow, effects = run(LIVE, frame(12), frame(13), Page((entry(11),), 11, False))
    assert effects[-1] == ReadLog(E, 11)
    follow, effects = run(follow, frame(14), Page((), 11, False))
    assert effects == [ReadLog(E, 11)]
    page = Page((entry(12), entry(13), entry(14)), 14, False)
    assert run(follow, page)[1] == [WriteEntries(page.entries)]


def test_a_hole_in_the_log_is_said_before_what_follows_it() -> None:
    page = Page((entry(15, 8), entry(16, 8)), 16, False, lost=(10, 15))
    follow, effects = run(LIVE, frame(15, epoch=8), page)
    assert effects[1:] == [Gap(10, 15), WriteEntries(page.entries)]
    assert (follow.epoch, follow.seq, follow.phase) == (8, 16, Phase.LIVE)


def test_a_cursor_is_looked_up_in_the_log_and_read_up_from_at_once() -> None:
    assert begin(E, 0)[1] == [StartCheckClock()]
    assert begin(E, 3)[1] == begin(E, 3, head=5)[1] == [StartCheckClock(), ReadLog(E, 3)]
    assert run(begin(E, 3)[0], NoPage(passing=False))[1][-1] == Finish(False)


def test_while_the_store_is_away_it_waits() -> None:
    follow, effects = run(LIVE, frame(12), NoPage(passing=True))
    assert effects[1:] == [StartRetryClock()]
    assert run(follow, RetryDue(), RetryDue())[1] == [ReadLog(E, 10)]


def test_when_the_owner_is_lost_the_log_is_read_to_its_end_and_the_session_found_again() -> None:
    follow, effects = run(LIVE, OwnerLost(), Page((entry(11),), 11, False))
    assert effects == [ReadLog(E, 10), WriteEntries((entry(11),)), Reattach(E, 11)]
    follow, effects = run(follow, NotAttached(passing=True), RetryDue(), Attached(11))
    assert effects == [StartRetryClock(), Reattach(E, 11), ReadLog(E, 11)]
    assert run(follow, Page((), 11, False), frame(12, epoch=8))[1] == [Write(b"mail 12")]
    assert run(LIVE, OwnerLost(), Page((entry(11),), 11, True))[1][-2:] == OVER


def test_after_an_attach_the_log_is_read_for_it_may_be_another_one() -> None:
    """What was appended before the attach is there, and a cursor that is none of its events is refused."""
    follow, _ = run(LIVE, OwnerLost(), Page((), 10, False))
    assert run(follow, Attached(12))[1] == run(follow, Attached(10))[1] == [ReadLog(E, 10)]
    assert run(follow, Attached(10), NoPage(passing=False))[1][-1] == Finish(False)


def test_a_session_that_is_gone_ends_the_connection_and_says_so() -> None:
    follow, _ = run(LIVE, OwnerLost(), Page((), 10, False))
    assert run(follow, NotAttached(passing=False))[1] == [Gap(10, None), StopClocks(), Finish(False)]


def test_an_owner_that_says_nothing_of_the_head_is_lost_though_it_may_live() -> None:
    follow, effects = run(LIVE, CheckDue(), CheckDue(), CheckDue())
    assert effects[-1] == ReadLog(E, 10)
    assert not follow.owned


def test_a_late_frame_of_a_former_owner_is_written_if_it_is_the_next() -> None:
    events = (OwnerLost(), Page((), 10, False), frame(11), Attached(11), Page((), 11, False), frame(12, epoch=8))
    written = [effect for effect in run(LIVE, *events)[1] if isinstance(effect, Write)]
    assert written == [Write(b"mail 11"), Write(b"mail 12")]


def test_a_stream_without_a_log_ends_when_mail_or_its_owner_is_missing() -> None:
    bare = begin(0, 0, recorded=False)[0]
    broken = [StopClocks(), Finish(False)]
    assert run(bare, frame(1, epoch=0), frame(3, epoch=0))[1] == [Write(b"mail 1"), Gap(1, None), *broken]
    assert run(bare, OwnerLost())[1] == [Gap(0, None), *broken]
    assert run(bare, HeadSaid(0, 1, True))[1] == [Gap(0, None), *broken]
    assert run(bare, frame(1, epoch=0, finished=True))[1] == [Write(b"mail 1"), *OVER]
    assert run(bare, frame(1, epoch=0), frame(1, epoch=0))[1] == [Write(b"mail 1")]


def test_a_connection_that_is_closed_or_superseded_follows_no_more() -> None:
    assert run(LIVE, Closed(), frame(11))[1] == [StopClocks(), Detach()]
    assert run(LIVE, Superseded(), frame(11))[1] == [StopClocks(), Finish(False)]
