"""A store in memory whose trouble is scripted: what it refuses, whose, which time, and how late it says so.

A `Rule` names calls of the port by method and number; what it does with such a call is its `effect`. Nothing here
breaks the port's promises but in ways in which a real store may: a refusal changes nothing (or, `lost`, was done
and not said), acknowledgements of one session stay in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import trio

from actors.ports import NO_DELTAS, Deltas, Done, Failed, Grant, Record, Refused, Replay, SessionKey
from actors.protocol.table import Limits
from gateway.store.memory import MemoryStore

HOLD = 10.0
"""Seconds for which writes of a live session wait for a store that is away; then they fail."""

WAITING = frozenset({"open", "append", "save", "touch", "drop", "restore", "mend"})
"""What waits for a store that is away; all else is refused at once."""

Effect = Literal["refuse", "lost", "late", "hold"]


@dataclass(eq=False)
class Rule:
    """What happens to calls number `first` to `first + times - 1` of these methods, of these sessions.

    `refuse`: not done, `reason` is the outcome. `lost`: done, and the outcome is `reason` all the same. `late`: done,
    and acknowledged after `seconds`. `hold`: the store is away for `seconds` from the first such call on: writes wait,
    for at most HOLD, everything else is refused.
    """

    methods: frozenset[str]
    effect: Effect = "refuse"
    reason: Refused = Refused.AWAY
    first: int = 1
    times: int = 1
    seconds: float = 0.0
    seen: int = 0
    fired: int = 0
    back: float | None = None

    def takes(self, method: str) -> bool:
        """Whether this call is one of those; counts it."""
        if method not in self.methods:
            return False
        self.seen += 1
        if self.first <= self.seen < self.first + self.times:
            self.fired += 1
            return True
        return False


@dataclass(eq=False)
class _Acknowledgements:
    """Of one session, in the order of the calls."""

    waiting: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    running: bool = False


class FaultyStore:
    """`Store` over a MemoryStore. `whose` says which sessions the rules are for."""

    durable = True

    def __init__(self, limits: Limits, nursery: trio.Nursery) -> None:
        self.inner = MemoryStore(limits, trio.current_time)
        self.owner = self.inner.owner
        self.rules: list[Rule] = []
        self.whose: Callable[[SessionKey], bool] = lambda key: True
        self.calls: list[tuple[str, SessionKey]] = []
        self.said: set[tuple[SessionKey, str, int]] = set()
        """Events whose append was acknowledged: session, stream, number."""
        self._nursery = nursery
        self._acknowledgements: dict[SessionKey, _Acknowledgements] = {}

    def create(self, key: SessionKey, fields: Mapping[str, bytes], done: Done) -> None:
        self._call("create", key, partial(self.inner.create, key, fields), done)

    def read(self, key: SessionKey, done: Done) -> None:
        self._call("read", key, partial(self.inner.read, key), done)

    def claim(
        self,
        key: SessionKey,
        expect_owner: str | None,
        expect_epoch: int,
        nonce: str,
        done: Done,
        *,
        lives: bool = False,
    ) -> None:
        do = partial(self.inner.claim, key, expect_owner, expect_epoch, nonce, lives=lives)
        self._call("claim", key, do, done)

    def open(
        self, key: SessionKey, grant: Grant, stream: str, requests: Mapping[str, bytes], first: bytes | None, done: Done
    ) -> None:
        numbers = [1] if first is not None else []
        do = partial(self.inner.open, key, grant, stream, requests, first)
        self._call("open", key, do, self._noting(key, stream, numbers, done))

    def append(
        self,
        key: SessionKey,
        grant: Grant,
        stream: str,
        seq: int,
        data: Sequence[bytes],
        done: Done,
        *,
        finish: bool = False,
        deltas: Deltas = NO_DELTAS,
    ) -> None:
        do = partial(self.inner.append, key, grant, stream, seq, data, finish=finish, deltas=deltas)
        self._call("append", key, do, self._noting(key, stream, range(seq, seq + len(data)), done))

    def _noting(self, key: SessionKey, stream: str, numbers: Iterable[int], done: Done) -> Done:
        def note(outcome: object) -> None:
            if outcome is None:
                self.said |= {(key, stream, number) for number in numbers}
            done(outcome)

        return note

    def save(self, key: SessionKey, grant: Grant, rev: int, deltas: Deltas, done: Done) -> None:
        self._call("save", key, partial(self.inner.save, key, grant, rev, deltas), done)

    def touch(self, key: SessionKey, grant: Grant, done: Done) -> None:
        self._call("touch", key, partial(self.inner.touch, key, grant), done)

    def written(self, key: SessionKey, grant: Grant, stream: str) -> None:
        self.inner.written(key, grant, stream)

    def trim(self, key: SessionKey, grant: Grant, stream: str, seq: int, done: Done) -> None:
        self._call("trim", key, partial(self.inner.trim, key, grant, stream, seq), done)

    def drop(self, key: SessionKey, grant: Grant, stream: str, done: Done) -> None:
        self._call("drop", key, partial(self.inner.drop, key, grant, stream), done)

    def restore(self, key: SessionKey, grant: Grant, rev: int, record: Record, done: Done) -> None:
        self._call("restore", key, partial(self.inner.restore, key, grant, rev, record), done)

    def mend(self, key: SessionKey, grant: Grant, stream: str, head: int, done: Done, *, opener: int = 0) -> None:
        self._call("mend", key, partial(self.inner.mend, key, grant, stream, head, opener=opener), done)

    def heads(self, streams: Sequence[tuple[SessionKey, str]], done: Done) -> None:
        self.inner.heads(streams, done)

    def release(self, key: SessionKey, grant: Grant, done: Done, *, work: bool = False) -> None:
        self._call("release", key, partial(self.inner.release, key, grant, work=work), done)

    def end(self, key: SessionKey, grant: Grant, reason: str, done: Done) -> None:
        self._call("end", key, partial(self.inner.end, key, grant, reason), done)

    def delete(self, key: SessionKey, grant: Grant, done: Done) -> None:
        self._call("delete", key, partial(self.inner.delete, key, grant), done)

    async def replay(
        self, key: SessionKey, stream: str, after_epoch: int, after_seq: int, limit: int
    ) -> Replay | Failed:
        rule = self._rule("replay", key)
        if rule is not None and not self._is_back(rule):
            await trio.lowlevel.checkpoint()
            return Failed(rule.reason, "scripted")
        return await self.inner.replay(key, stream, after_epoch, after_seq, limit)

    # Trouble

    def _rule(self, method: str, key: SessionKey) -> Rule | None:
        self.calls.append((method, key))
        if not self.whose(key):
            return None
        return next((rule for rule in self.rules if rule.takes(method)), None)

    def _is_back(self, rule: Rule) -> bool:
        if rule.effect != "hold":
            return rule.effect == "late"
        if rule.back is None:
            rule.back = trio.current_time() + rule.seconds
        return trio.current_time() >= rule.back

    def _call(self, method: str, key: SessionKey, do: Callable[[Done], None], done: Done) -> None:
        rule = self._rule(method, key)
        if rule is None or (rule.effect == "hold" and self._is_back(rule)):
            self._later(key, 0.0, lambda: do(done))
        elif rule.effect == "hold":
            self._hold(rule, method, key, do, done)
        elif rule.effect == "late":
            do(lambda outcome: self._later(key, rule.seconds, lambda: done(outcome)))
        elif rule.effect == "lost":
            do(lambda outcome: None)
            self._later(key, 0.0, lambda: done(Failed(rule.reason, "scripted: done, not said")))
        else:
            self._later(key, 0.0, lambda: done(Failed(rule.reason, "scripted")))

    def _hold(self, rule: Rule, method: str, key: SessionKey, do: Callable[[Done], None], done: Done) -> None:
        assert rule.back is not None
        left = rule.back - trio.current_time()
        if method not in WAITING:
            self._later(key, 0.0, lambda: done(Failed(Refused.AWAY, "scripted")))
        elif left > HOLD:
            self._later(key, HOLD, lambda: done(Failed(Refused.AWAY, "scripted")))
        else:
            self._later(key, left, lambda: do(done))

    def _later(self, key: SessionKey, seconds: float, step: Callable[[], None]) -> None:
        """After so many seconds, and after what was called before for the same session. At once if that is now."""
        queue = self._acknowledgements.setdefault(key, _Acknowledgements())
        if not queue.running and not seconds:
            step()
            return
        queue.waiting.append((trio.current_time() + seconds, step))
        if not queue.running:
            queue.running = True
            self._nursery.start_soon(self._acknowledge, queue)

    async def _acknowledge(self, queue: _Acknowledgements) -> None:
        while queue.waiting:
            due, step = queue.waiting[0]
            await trio.sleep(max(0.0, due - trio.current_time()))
            queue.waiting.popleft()
            step()
        queue.running = False
