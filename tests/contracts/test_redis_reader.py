"""Replays from Redis, whose head and entries are not read in one step."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from actors.ports import Failed, LogEntry, Refused, Replay
from gateway.store.redis import reader
from gateway.store.redis.links import Command, History, Reply
from gateway.store.redis.reader import Reader

BEFORE, AFTER = b"5 50 7 0 0 7 0", b"5 20 7 0 3 7 0"
"""Heads of a stream of five events, and of the same one without its first three."""


class Scripted:
    """A link that answers as it is told."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        return self.answers.pop(0)

    def split(self, commands: Sequence[Command]) -> Iterable[Sequence[int]]:
        return [range(len(commands))]

    def renew(self) -> None:
        """There is no other."""

    def prepare(self) -> None:
        """Nothing is to be made ready."""

    def histories(self, key: str | None = None) -> Mapping[str, History]:
        return {}

    def close(self) -> None:
        """It has no connection."""


def answer(head: bytes) -> list[Any]:
    """Head, the event at the cursor, those behind it, whether there is a log."""
    return [[b"live", head], [], [[b"7-4", [b"d", b"four"]], [b"7-5", [b"d", b"five"]]], 1]


@pytest.mark.parametrize("after", [(7, 1), (7, 2), (7, 0)])
async def test_what_was_trimmed_between_head_and_entries_is_no_loss(after: tuple[int, int]) -> None:
    link = Scripted(answer(BEFORE), answer(AFTER))
    replay = await Reader(link).replay("key", "p1", *after, 10)
    assert replay == Replay([LogEntry(7, 4, b"four"), LogEntry(7, 5, b"five")], 5, False, (after[1], 4))
    assert not link.answers


async def test_a_hole_that_is_there_when_it_is_looked_again_is_told() -> None:
    replay = await Reader(Scripted(answer(BEFORE), answer(BEFORE))).replay("key", "p1", 7, 0, 10)
    assert isinstance(replay, Failed)
    assert (replay.reason, replay.head) == (Refused.SEQ, 5)


class Slow(Scripted):
    """Answers when it is let."""

    def __init__(self, *answers: list[Any]) -> None:
        super().__init__(*answers)
        self.let = threading.Event()

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        self.let.wait()
        return super().exchange(commands)


async def test_nobody_waits_without_end_for_those_before_him(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WITHIN", 0.05)
    link = Slow(answer(AFTER), answer(AFTER))  # one for who has given up
    replays = Reader(link)
    for _ in range(3):
        refused = await replays.replay("key", "p1", 7, 3, 10)
        assert isinstance(refused, Failed)
        assert refused.reason is Refused.AWAY
    monkeypatch.setattr(reader, "WITHIN", 60.0)
    link.let.set()
    assert isinstance(await replays.replay("key", "p1", 7, 3, 10), Replay)
