"""The way of letters to a session's owner, as values."""

from __future__ import annotations

import pytest

from actors.machines.cluster.route import (
    GRACE,
    HERE,
    HOPS,
    LATE,
    LEAVING,
    LETTERS,
    LOOKS,
    QUIET,
    Abandoned,
    Accept,
    AliveSaid,
    AskAlive,
    Clock,
    Detach,
    Fail,
    GiveHere,
    Heard,
    Kind,
    LateDue,
    Moved,
    NotPosted,
    OwnerDown,
    Post,
    Posted,
    QuietDue,
    Recover,
    Recovered,
    Refused,
    Released,
    Renamed,
    Resolve,
    Resolved,
    Route,
    RouteEffect,
    RouteEvent,
    Sent,
    StartClock,
    StopClocks,
    Unposted,
    Unresolved,
    Why,
    Withdraw,
    Withdrawn,
    step,
)

REQUESTS, NOTE, ATTACH = Kind


def run(route: Route, *events: RouteEvent) -> tuple[Route, list[RouteEffect]]:
    """The state, and all effects but clocks."""
    effects: list[RouteEffect] = []
    for event in events:
        route, further = step(route, event)
        effects += further
    return route, [effect for effect in effects if not isinstance(effect, StartClock | StopClocks)]


def posted(*kinds: Kind, to: str = "a") -> Route:
    """Letters 1, 2, … in the inbox of an owner, as entries e1, e2, …"""
    route = Route(owner=to)
    for mid, kind in enumerate(kinds, 1):
        route, _ = run(route, Sent(mid, kind), Posted(mid, to, f"e{mid}"))
    return route


def test_letters_wait_until_the_owner_is_known_and_go_in_order() -> None:
    route, effects = run(Route(), Sent(1, REQUESTS), Sent(2, NOTE), Resolved("a"))
    assert effects == [Resolve(None), Post(1, "a"), Post(2, "a")]
    route, effects = run(route, Posted(1, "a", "e1"), Heard(1), Posted(2, "a", "e2"), Heard(2))
    assert effects == [Accept(1), Accept(2)]
    assert route.idle
    assert run(route, Sent(3, NOTE))[1] == [Post(3, "a")], "the owner is remembered"


def test_a_session_here_gets_what_waits_in_order_and_may_give_it_back() -> None:
    route, effects = run(Route(), Sent(1, REQUESTS), Sent(2, NOTE), Resolved(HERE))
    assert effects == [Resolve(None), GiveHere(1), GiveHere(2)]
    route, effects = run(route, Moved(1, HERE), Moved(2, HERE), Resolved("a"))
    assert effects == [Resolve(None), Post(1, "a"), Post(2, "a")]


def test_clocks_begin_with_the_letter_and_with_each_post_and_end_with_it() -> None:
    route, effects = step(Route(owner="a"), Sent(1, REQUESTS))
    assert effects == [StartClock(1, Clock.LATE, LATE), Post(1, "a"), StartClock(1, Clock.QUIET, QUIET)]
    assert step(route, Heard(1))[1] == [StopClocks(1), Accept(1)]


def test_nobody_there_is_tried_elsewhere_and_a_full_inbox_is_said_at_once() -> None:
    route, effects = run(Route(owner="a"), Sent(1, REQUESTS), NotPosted(1, "a", Unposted.DEAD), Resolved("b"))
    assert effects == [Post(1, "a"), Resolve("a"), Post(1, "b")]
    assert run(route, NotPosted(1, "b", Unposted.INBOX_FULL))[1] == [Fail(1, Why.OVERLOADED)]


@pytest.mark.parametrize("kind", [NOTE, ATTACH])
def test_what_became_of_a_post_to_the_former_owner_says_nothing_of_the_next(kind: Kind) -> None:
    late = (NotPosted(1, "a", Unposted.DEAD), Posted(1, "a", "e1"))
    for event in late:
        route, effects = run(Route(owner="a"), Sent(1, kind), OwnerDown("a"), Resolved("b"))
        assert effects == [Post(1, "a"), Resolve("a"), Post(1, "b")]
        assert run(route, event) == (route, [])
    route, _ = run(posted(REQUESTS), OwnerDown("a"), Withdrawn(1, False), Resolved("b"), OwnerDown("b"), Resolved("c"))
    assert run(route, NotPosted(1, "b", Unposted.DEAD)) == (route, [])


def test_where_no_owner_can_be_found_what_waits_gets_the_reason() -> None:
    _, effects = run(Route(), Sent(1, REQUESTS), Sent(2, NOTE), Unresolved("gone"))
    assert effects[1:] == [Fail(1, Why.REFUSED, "gone"), Fail(2, Why.REFUSED, "gone")]


def test_what_the_owner_refuses_was_not_taken() -> None:
    assert run(posted(REQUESTS), Refused(1, "full"))[1] == [Fail(1, Why.REFUSED, "full")]


# Moved ------------------------------------------------------------------------------------------------------


def test_what_was_moved_goes_on_to_the_owner_that_was_named() -> None:
    route, effects = run(posted(REQUESTS), Moved(1, "a", "b"))
    assert effects == [Post(1, "b")]
    assert run(route, Moved(1, "a", "c"))[1] == [], "said once more by the first one"


def test_a_cancel_never_overtakes_its_request() -> None:
    route, effects = run(posted(REQUESTS, NOTE), Moved(1, "a", "b"), Sent(3, NOTE))
    assert effects == [Post(1, "b")], "the third waits behind the second, which is still there"
    assert run(route, Moved(2, "a", "b"))[1] == [Post(2, "b"), Post(3, "b")]


def test_a_letter_does_not_go_back_to_who_gave_it_back_before_the_store_names_another() -> None:
    route, effects = run(posted(REQUESTS), Moved(1, "a"), *[Resolved("a")] * 20)
    assert effects == [Resolve(), *[Resolve(after=LEAVING)] * 20]
    assert run(route, Resolved("b"))[1] == [Post(1, "b")]
    assert run(route, LateDue(1), Resolved("a"))[0].idle
    dead, effects = run(route, OwnerDown("a"), Resolved("a"), NotPosted(1, "a", Unposted.DEAD), Resolved("b"))
    assert effects == [Post(1, "a"), Resolve("a"), Post(1, "b")], "it claims it from the dead one"
    assert dead.former is None


def test_who_gave_a_letter_back_gets_it_again_if_the_store_insists() -> None:
    """Its mailer ended with the letter in hand, say, and a next one reads there; more letters come all the time."""
    route, _ = run(posted(REQUESTS), Moved(1, "a"))
    for mid in range(2, 2 + LOOKS):
        route, effects = run(route, Sent(mid, REQUESTS), Resolved("a"))
        assert effects == [Resolve(after=LEAVING)]
    route, effects = run(route, Resolved("a"))
    assert effects == [Post(mid, "a") for mid in range(1, 2 + LOOKS)]
    assert LOOKS * LEAVING < LATE


def test_who_gave_a_letter_back_may_have_taken_the_session_from_whom_it_named() -> None:
    _, effects = run(posted(REQUESTS), Moved(1, "a", "b"), NotPosted(1, "b", Unposted.DEAD), Resolved("a"))
    assert effects == [Post(1, "b"), Resolve("b"), Post(1, "a")]


def test_after_three_owners_it_is_enough() -> None:
    route, effects = run(posted(REQUESTS), *(Moved(1, owner, after) for owner, after in ("ab", "bc", "cd")))
    assert HOPS == 3
    assert effects == [Post(1, "b"), Post(1, "c"), Fail(1, Why.UNAVAILABLE)]
    assert route.idle


def test_a_session_that_was_released_is_looked_for_when_there_is_something_for_it() -> None:
    route, effects = run(Route(owner="a"), Released("a"))
    assert effects == []
    assert run(route, Sent(1, NOTE))[1] == [Resolve(None)]


# The owner dies ---------------------------------------------------------------------------------------------


def test_what_a_dead_owner_never_read_goes_to_the_next() -> None:
    route, effects = run(posted(REQUESTS), OwnerDown("a"))
    assert effects == [Withdraw(1, "a", "e1")]
    assert run(route, Withdrawn(1, True), Resolved("b"))[1] == [Resolve("a"), Post(1, "b")]


def test_what_it_took_is_never_sent_again_but_looked_for() -> None:
    route, effects = run(posted(REQUESTS), OwnerDown("a"), Withdrawn(1, False), Resolved(HERE))
    assert effects[1:] == [Resolve("a"), Recover(1, HERE)]
    assert run(route, Recovered(1, True))[1] == [Accept(1)]
    assert run(route, Recovered(1, False))[1] == [Fail(1, Why.LOST)]
    assert run(route, Heard(1), Recovered(1, True))[1] == [Accept(1)], "its answer was only late"


def test_where_nobody_can_tell_it_counts_as_taken() -> None:
    down = (OwnerDown("a"), Resolved("b"))
    assert Recover(1, "b") in run(posted(REQUESTS), OwnerDown("a"), Withdrawn(1, None), Resolved("b"))[1]
    route, _ = run(Route(owner="a"), Sent(1, REQUESTS), NotPosted(1, "a", Unposted.AWAY))
    assert run(route, *down)[1] == [Resolve("a"), Recover(1, "b")]


def test_notes_and_attachments_are_sent_again_in_any_case_behind_what_was_before_them() -> None:
    route, effects = run(posted(REQUESTS, NOTE, ATTACH), OwnerDown("a"))
    assert effects == [Withdraw(1, "a", "e1")]
    _, effects = run(route, Withdrawn(1, True), Resolved("b"))
    assert effects == [Resolve("a"), Post(1, "b"), Post(2, "b"), Post(3, "b")]


def test_a_post_under_way_when_its_receiver_dies_is_taken_back_as_soon_as_it_has_a_name() -> None:
    route, _ = run(Route(owner="a"), Sent(1, REQUESTS))
    route, effects = run(route, OwnerDown("a"))
    assert effects == []
    assert run(route, Posted(1, "a", "e1"))[1] == [Withdraw(1, "a", "e1")]


def test_a_cancel_under_way_when_its_holder_is_renamed_waits_for_its_request() -> None:
    route, _ = run(Route("a"), Sent(1, REQUESTS), Sent(2, NOTE))
    route, effects = run(route, Renamed(), Posted(1, "a", "1-1"))
    assert effects == [Withdraw(1, "a", "1-1")]
    route, effects = run(route, Withdrawn(1, True))
    assert effects == [Post(1, "a"), Post(2, "a")]


def test_when_the_next_owner_dies_too_it_is_asked_again() -> None:
    route, _ = run(posted(REQUESTS), OwnerDown("a"), Withdrawn(1, False), Resolved("b"))
    assert run(route, OwnerDown("b"), Resolved("c"))[1] == [Resolve("b"), Recover(1, "c")]


def test_an_owner_that_had_released_the_session_before_it_died_has_not_executed_it() -> None:
    route, _ = run(posted(REQUESTS), OwnerDown("a"), Withdrawn(1, False))
    assert run(route, Moved(1, "a"), Resolved("b"))[1] == [Post(1, "b")]


# Nothing heard ----------------------------------------------------------------------------------------------


def test_after_two_seconds_without_a_word_it_is_asked_whether_the_owner_lives() -> None:
    route, effects = run(posted(REQUESTS), QuietDue(1))
    assert effects == [AskAlive("a")]
    assert run(route, AliveSaid("a", True))[1] == run(route, AliveSaid("a", None))[1] == []
    assert run(route, AliveSaid("a", False))[1] == [Withdraw(1, "a", "e1")]


def test_after_ten_it_is_taken_back_from_a_living_one_or_looked_for() -> None:
    route, effects = step(posted(REQUESTS), LateDue(1))
    assert effects == [StartClock(1, Clock.LATE, GRACE), Withdraw(1, "a", "e1")]
    assert run(route, Withdrawn(1, True))[1] == [Fail(1, Why.UNAVAILABLE)]
    route, effects = run(route, Withdrawn(1, False))
    assert effects == [Recover(1, "a")]
    assert run(route, Recovered(1, False))[1] == [Detach(1, "a"), Fail(1, Why.LOST)]
    assert run(route, LateDue(1))[1] == [Detach(1, "a"), Fail(1, Why.LOST)]


def test_a_note_that_was_taken_and_not_heard_of_is_not_said_to_be_undone() -> None:
    route, _ = run(posted(NOTE), LateDue(1))
    assert run(route, Withdrawn(1, False))[1] == [Detach(1, "a"), Fail(1, Why.LOST)]


def test_what_was_never_posted_in_time_was_surely_not_executed() -> None:
    assert run(Route(), Sent(1, REQUESTS), LateDue(1))[1] == [Resolve(None), Fail(1, Why.UNAVAILABLE)]


def test_a_question_for_what_is_recorded_is_put_again_when_nothing_is_heard() -> None:
    route, _ = run(posted(REQUESTS), OwnerDown("a"), Withdrawn(1, False), Resolved("b"))
    assert run(route, NotPosted(1, "b", Unposted.AWAY), QuietDue(1))[1] == [Recover(1, "b"), AskAlive("b")]


@pytest.mark.parametrize("asked", ["b", HERE])
def test_who_is_asked_twice_for_what_is_recorded_and_has_not_the_session_says_nothing_of_the_letter(asked: str) -> None:
    """It was taken by another one, and is never sent again."""
    route, _ = run(posted(REQUESTS), OwnerDown("a"), Withdrawn(1, False), Resolved(asked))
    route, effects = run(route, QuietDue(1), Moved(1, asked), Moved(1, asked))
    assert Recover(1, asked) in effects
    assert run(route, Resolved("c"))[1] == [Recover(1, "c")]


# The connection breaks --------------------------------------------------------------------------------------


def test_a_broken_connection_takes_its_request_back_if_nobody_has_it_and_else_lets_it_go() -> None:
    assert run(Route(), Sent(1, REQUESTS), Abandoned(1), Resolved("a"))[1] == [Resolve(None)]
    assert run(posted(REQUESTS), Abandoned(1), OwnerDown("a"))[1] == [Detach(1, "a")]


def test_a_note_goes_on_without_its_connection() -> None:
    assert run(Route(), Sent(1, NOTE), Abandoned(1), Resolved("a"))[1] == [Resolve(None), Post(1, "a")]


# Bounds -----------------------------------------------------------------------------------------------------


def test_there_is_a_bound_on_what_waits() -> None:
    route, _ = run(Route(), *(Sent(mid, NOTE) for mid in range(LETTERS)))
    assert run(route, Sent(LETTERS, NOTE))[1] == [Fail(LETTERS, Why.OVERLOADED)]


def test_what_concerns_no_letter_changes_nothing() -> None:
    route = posted(REQUESTS)
    for event in (Heard(9), Moved(9, "a"), Withdrawn(9, True), Posted(9, "a", "e"), Recovered(1, True), Resolved("b")):
        assert step(route, event) == (route, [])
