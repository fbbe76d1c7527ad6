"""The lease of a replica, as values."""

from __future__ import annotations

from functools import reduce

import pytest

from actors.machines.cluster.lease import (
    DOUBT,
    TICK_WITHIN,
    TRANSITIONS,
    TTL,
    Beat,
    BeatDue,
    Beaten,
    Certain,
    Doubt,
    DrainBegun,
    Drained,
    Forgot,
    GiveUp,
    Lapsed,
    Lease,
    LeaseEvent,
    LeasePhase,
    Looked,
    Rename,
    Verified,
    Verify,
    VerifyAgain,
    doubtful,
    may_claim,
    step,
)


def after(*events: LeaseEvent) -> Lease:
    return reduce(lambda lease, event: step(lease, event)[0], events, Lease())


LIVE = after(Beaten(10.0, 10.1))


def test_a_replica_begins_in_doubt_and_its_first_beat_takes_the_lease() -> None:
    assert Lease().doubted
    assert step(Lease(), BeatDue(10.0, 10.0))[1] == [Beat(take=True)]
    lease, effects = step(Lease(), Beaten(10.0, 10.1))
    assert (lease.phase, lease.doubted, effects) == (LeasePhase.LIVE, False, [Certain()])
    assert step(lease, BeatDue(10.5, 10.5))[1] == [Beat(take=False)]


def test_a_loop_that_stands_still_sends_no_beat() -> None:
    assert step(LIVE, BeatDue(11.6, 10.0))[1] == []
    assert step(LIVE, BeatDue(10.0 + TICK_WITHIN, 10.0))[1] == [Beat(take=False)]


def test_the_age_counts_from_the_sending_of_the_beat() -> None:
    lease, effects = step(LIVE, Looked(10.0 + DOUBT))
    assert effects == []
    lease, effects = step(lease, Looked(10.01 + DOUBT))
    assert (lease.phase, lease.doubted, effects) == (LeasePhase.DOUBTFUL, True, [Doubt()])
    assert step(lease, Looked(20.0))[1] == [], "it is told once"


def test_a_beat_ends_the_doubt_unless_it_is_too_old_itself() -> None:
    doubtful = after(Beaten(10.0, 10.1), Looked(13.0))
    lease, effects = step(doubtful, Beaten(13.0, 13.1))
    assert (lease.phase, effects) == (LeasePhase.LIVE, [Certain()])
    assert step(doubtful, Beaten(10.5, 13.1)) == (doubtful, [])


def test_a_doubt_that_was_only_asked_for_ends_too() -> None:
    """By the clock it began before anybody looked: whoever waits for its end must be told."""
    assert doubtful(LIVE, 10.1 + DOUBT)
    lease, effects = step(LIVE, Beaten(10.2 + DOUBT, 10.3 + DOUBT))
    assert effects == [Doubt(), Certain()]
    assert not doubtful(lease, 10.3 + DOUBT)
    assert doubtful(lease, 10.3 + 2 * DOUBT)


def test_after_a_lapse_it_is_another_and_asks_for_its_sessions() -> None:
    lease, effects = step(LIVE, Lapsed(11.0))
    assert (lease.phase, lease.doubted, effects) == (LeasePhase.LAPSED, True, [Doubt(), Rename()])
    assert step(lease, BeatDue(11.0, 11.0))[1] == [Beat(take=True)]
    lease, effects = step(lease, Beaten(11.0, 11.1))
    assert (lease.phase, lease.doubted, effects) == (LeasePhase.VERIFYING, False, [Verify()])
    assert step(lease, Verified())[0].phase is LeasePhase.LIVE


def test_whoever_has_not_lived_for_a_whole_lease_claims_from_nobody() -> None:
    """Else all would claim from all when Redis comes back."""
    assert not may_claim(LIVE, 10.0 + TTL - 0.1)
    beaten = step(LIVE, Beaten(9.0 + TTL, 10.0 + TTL))[0]
    assert may_claim(beaten, 10.0 + TTL)
    assert not may_claim(beaten, 9.1 + TTL + DOUBT), "too long without a beat"
    assert not may_claim(after(Beaten(10.0, 10.0), Lapsed(20.0), Beaten(20.0, 20.0)), 21.0)


def test_a_store_that_may_have_lost_writes_is_asked_for_all_that_is_owned() -> None:
    """And whoever looks dead there may only have been forgotten."""
    long = step(LIVE, Beaten(9.0 + TTL, 10.0 + TTL))[0]
    lease, effects = step(long, Forgot(10.0 + TTL))
    assert (lease.phase, lease.doubted, effects) == (LeasePhase.VERIFYING, False, [VerifyAgain()])
    assert may_claim(long, 10.0 + TTL)
    assert not may_claim(lease, 10.0 + TTL)
    assert may_claim(step(lease, Beaten(9.5 + 2 * TTL, 10.0 + 2 * TTL))[0], 10.0 + 2 * TTL)
    lapsed = step(LIVE, Lapsed(11.0))[0]
    assert step(lapsed, Forgot(11.0)) == (lapsed, []), "all is claimed under the next name anyway"


def test_a_drain_keeps_the_lease_until_all_is_done() -> None:
    lease, effects = step(LIVE, DrainBegun())
    assert (lease.phase, effects) == (LeasePhase.DRAINING, [])
    assert step(lease, BeatDue(10.5, 10.5))[1] == [Beat(take=False)]
    lease, effects = step(lease, Drained())
    assert (lease.phase, effects) == (LeasePhase.GONE, [GiveUp()])
    assert step(lease, BeatDue(11.0, 11.0)) == (lease, [])


def test_a_lapse_in_a_drain_is_the_end_but_a_doubt_is_only_a_doubt() -> None:
    draining = after(Beaten(10.0, 10.1), DrainBegun())
    doubtful, effects = step(draining, Looked(13.0))
    assert (doubtful.phase, doubtful.doubted, effects) == (LeasePhase.DRAINING, True, [Doubt()])
    assert step(doubtful, Beaten(13.0, 13.0))[1] == [Certain()]
    lease, effects = step(doubtful, Lapsed(14.0))
    assert (lease.phase, lease.doubted, effects) == (LeasePhase.GONE, True, [])


EVENTS = (BeatDue(50, 50), Beaten(50, 50), Lapsed(50), Looked(50), Verified(), DrainBegun(), Drained())


@pytest.mark.parametrize("phase", LeasePhase)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_phase_takes_every_event_and_moves_only_by_the_table(phase: LeasePhase, event: LeaseEvent) -> None:
    lease, _ = step(Lease(phase, 49.5, 0.0, doubted=phase is not LeasePhase.LIVE), event)
    assert lease.phase is phase or lease.phase in {to for (of, _), to in TRANSITIONS.items() if of is phase}
