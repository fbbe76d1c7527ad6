"""What only the store in memory promises: expiry by a clock, and a small footprint."""

import os
import tracemalloc
from dataclasses import replace
from heapq import nsmallest

import pytest

from actors.ports import NO_DELTAS, Failed, Refused
from actors.protocol.table import Limits
from gateway.store import memory, shelf
from gateway.store.memory import MemoryStore


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(replace(Limits(), idle_ttl=1800.0), clock)


def now(method, *args):
    outcomes = []
    method(*args, outcomes.append)
    (outcome,) = outcomes
    return outcome


def test_the_outcome_is_there_before_the_call_returns_and_nothing_is_durable(store):
    assert now(store.create, "k", {}).owner == store.owner
    assert store.durable is False


def test_a_session_that_is_never_saved_lives_a_minute_whatever_it_writes(store, clock):
    grant = now(store.create, "k", {})
    clock.now += 59
    assert now(store.open, "k", grant, "p1", {}, b"x") is None
    clock.now += 2
    assert now(store.touch, "k", grant) == Failed(Refused.GONE)
    assert now(store.read, "k") == Failed(Refused.GONE)


def test_a_saved_session_lives_its_idle_time_and_ten_minutes_from_the_last_write(store, clock):
    grant = now(store.create, "k", {})
    assert now(store.save, "k", grant, 1, NO_DELTAS) is None
    for _ in range(3):
        clock.now += 2399
        assert now(store.touch, "k", grant) is None
    clock.now += 2401
    assert now(store.touch, "k", grant) == Failed(Refused.GONE)


def test_a_sweep_frees_what_has_expired_and_nothing_else(store, clock):
    kept = now(store.create, "kept", {})
    now(store.save, "kept", kept, 1, NO_DELTAS)
    for index in range(50):
        now(store.create, f"young {index}", {})
    clock.now += 30
    store.sweep(clock.now)
    assert len(store) == 51
    clock.now += 31
    store.sweep(clock.now)
    assert len(store) == 1
    assert now(store.touch, "kept", kept) is None
    clock.now += 2401
    store.sweep(clock.now)
    assert len(store) == 0


def test_a_key_may_be_created_again_after_it_expired(store, clock):
    first = now(store.create, "k", {"a": b"1"})
    clock.now += 61
    second = now(store.create, "k", {})
    assert second.epoch > first.epoch
    assert now(store.touch, "k", first) == Failed(Refused.FENCED)
    store.sweep(clock.now)
    assert now(store.read, "k").fields == {}


def test_a_tombstone_is_remembered_for_ten_minutes(store, clock):
    grant = now(store.create, "k", {})
    now(store.end, "k", grant, "why")
    clock.now += 599
    store.sweep(clock.now)
    assert now(store.read, "k") == Failed(Refused.ENDED)
    clock.now += 2
    assert now(store.read, "k") == Failed(Refused.GONE)


def test_tombstones_are_bounded(store, clock, monkeypatch):
    monkeypatch.setattr(memory, "TOMBSTONES", 10)
    for index in range(25):
        now(store.end, f"k{index}", now(store.create, f"k{index}", {}), "why")
    assert now(store.read, "k24") == Failed(Refused.ENDED)
    assert now(store.read, "k14") == Failed(Refused.GONE)


async def test_what_is_on_the_shelf_is_bounded_and_seldom_looked_through(store, monkeypatch):
    monkeypatch.setattr(shelf, "MOST", 100)
    monkeypatch.setattr(shelf, "GIVE_WAY", 10)
    looks = []
    monkeypatch.setattr(shelf, "nsmallest", lambda *given, **how: looks.append(1) or nsmallest(*given, **how))
    for index in range(120):
        await store.shelf.put(f"k{index}", b"x", 1000.0 - index)
    there = [index for index in range(120) if await store.shelf.read(f"k{index}") is not None]
    assert there == [*range(91), *range(111, 120)]
    assert len(looks) == 2


def test_an_idle_session_takes_less_than_a_kilobyte(store):
    """The whole idle session may take 2 KiB."""
    count = 2_000
    keys = [os.urandom(16).hex() for _ in range(count)]
    fields = {"phase": b"ready", "version": b"2025-11-25", "client": b"x" * 60, "principal": b"me", "level": b"info"}
    grants = []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for key in keys:
        store.create(key, {name: bytes(bytearray(value)) for name, value in fields.items()}, grants.append)
    held = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    assert held < 1024
