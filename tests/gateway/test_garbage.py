"""The bound on garbage that reference counting does not free."""

import gc
import weakref

import pytest

from gateway.lifecycle import GARBAGE_SLACK, GARBAGE_STEP, GarbageBound, memory_used

MIB = 1024 * 1024


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def uncollected():
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def circle() -> weakref.ref[Circle]:
    return weakref.ref(Circle())


def test_garbage_is_collected_when_the_process_has_grown():
    sizes = iter([100 * MIB, 100 * MIB, 120 * MIB, 99 * MIB + GARBAGE_STEP])
    bound = GarbageBound(lambda: next(sizes))
    lost = circle()
    assert [bound.look() for _ in range(3)] == [None] * 3
    assert lost() is not None
    sizes = iter([100 * MIB + GARBAGE_STEP, 110 * MIB])
    pause = bound.look()
    assert pause is not None
    assert pause >= 0
    assert lost() is None


def test_what_has_lived_through_a_collection_is_left_out_of_the_next_until_the_process_has_doubled():
    size = 100 * MIB
    bound = GarbageBound(lambda: size)
    kept = Circle()
    old = weakref.ref(kept)
    size += GARBAGE_STEP
    assert bound.look() is not None
    del kept
    new = circle()
    size += GARBAGE_STEP
    assert bound.look() is not None
    assert (old() is not None, new()) == (True, None)
    size = 200 * MIB + GARBAGE_SLACK
    assert bound.look() is not None
    assert old() is None
    assert bound.look() is None


def test_a_process_that_does_not_grow_never_stops_for_it():
    sizes = iter([100 * MIB, 500 * MIB, 500 * MIB, 500 * MIB, 520 * MIB, 400 * MIB])
    bound = GarbageBound(lambda: next(sizes))
    assert bound.look() is not None
    lost = circle()
    assert [bound.look() for _ in range(3)] == [None] * 3
    assert lost() is not None


def test_circles_without_end_keep_the_process_within_the_bound():
    """Each holds a mebibyte."""
    bound, before, most = GarbageBound(), memory_used(), 0
    for _ in range(400):
        Circle().ballast = b"x" * MIB  # type: ignore[attr-defined]
        bound.look()
        most = max(most, memory_used())
    assert most < 1.5 * before + 3 * GARBAGE_STEP
