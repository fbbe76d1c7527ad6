"""The bound on garbage that reference counting does not free."""

import gc
import weakref

import pytest

from gateway.lifecycle import GARBAGE_SLACK, GarbageBound, memory_used

MIB = 1024 * 1024


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def uncollected():
    gc.disable()
    yield
    gc.enable()


def circle() -> weakref.ref[Circle]:
    return weakref.ref(Circle())


def test_garbage_is_collected_when_the_process_has_grown_by_a_quarter():
    sizes = iter([100 * MIB, 100 * MIB, 120 * MIB, 124 * MIB + GARBAGE_SLACK])
    bound = GarbageBound(lambda: next(sizes))
    lost = circle()
    assert [bound.look() for _ in range(3)] == [None] * 3
    assert lost() is not None
    sizes = iter([125 * MIB + GARBAGE_SLACK, 110 * MIB])
    pause = bound.look()
    assert pause is not None
    assert pause >= 0
    assert lost() is None


def test_a_process_that_does_not_grow_never_stops_for_it():
    sizes = iter([100 * MIB, 500 * MIB, 500 * MIB, 500 * MIB, 600 * MIB, 400 * MIB])
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
    assert most < 1.5 * before + 3 * GARBAGE_SLACK
