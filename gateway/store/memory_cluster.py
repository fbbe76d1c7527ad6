"""Several replicas over one memory: who runs, what each may own, and the mail between them.

One clock tells all of them who lives, so one reading is enough. A replica alone needs no task; beside others each has
`run`, which does what the lease and the inbox of a process do. The knobs are for tests: what can happen to a process
and to its mail happens here on the clock of the store.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import Any

import trio

from actors.machines.cluster import lease
from actors.machines.session import record
from actors.ports import ClusterListener, Done, Failed, Incarnation, Refused, Replica, SessionKey
from gateway.store.rules import INBOX, TWICE

LETTERS = 256
"""Letters taken at once."""

PAGE = 100
"""Keys of a page of what an incarnation owns."""

_DEAD = Failed(Refused.DEAD, "nobody reads this inbox")
_FULL = Failed(Refused.INBOX_FULL, "the inbox is full")


@dataclass(slots=True)
class _Letter:
    entry: str
    data: bytes
    due: float


@dataclass(eq=False, slots=True)
class _Member:
    """One incarnation, as all see it. It is dead from `dies` on; `told` is when the others find that out."""

    incarnation: Incarnation
    info: Mapping[str, Any]
    dies: float = math.inf
    told: float = math.inf
    listed: bool = True
    inbox: deque[_Letter] = field(default_factory=deque)
    left: dict[SessionKey, None] = field(default_factory=dict)
    """Released with work in flight."""
    disowned: set[SessionKey] = field(default_factory=set)


class Directory:
    """What the replicas of one memory have in common."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.members: dict[Incarnation, _Member] = {}
        self.entries = count(1)
        self._changed = trio.Event()

    def alive(self, incarnation: Incarnation) -> bool:
        """Whether its lease holds."""
        member = self.members.get(incarnation)
        return member is not None and self.now() < member.dies

    def changed(self) -> None:
        """There may be something to do for somebody."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, until: float) -> None:
        """Until something changed, at the latest at this time."""
        with trio.move_on_after(until - self.now()):
            await self._changed.wait()


class MemoryReplica:
    """See `Cluster`. `owners` says who owns what, by the records; `renamed` is told of a fresh incarnation before the
    listeners are."""

    def __init__(
        self,
        directory: Directory,
        owners: Callable[[], Iterable[tuple[SessionKey, Incarnation | None]]],
        renamed: Callable[[Incarnation], object],
        info: Mapping[str, Any],
    ) -> None:
        self.post_office: Callable[[Incarnation, bytes], Sequence[float]] = lambda to, letter: (0.0,)
        """What becomes of a letter that this replica posts: the delay of each copy that arrives, of none if it is lost.
        It can be late, and never overtakes."""
        self._directory = directory
        self._owners = owners
        self._renamed = renamed
        self._info = info
        self._listeners: list[ClusterListener] = []
        self._names: set[Incarnation] = set()
        self._down: set[Incarnation] = set()
        self._silent: float | None = None
        """Since when no beat of its own was acknowledged."""
        self._cut = self._stopped = False
        """No beat of it is acknowledged; nothing of it runs."""
        self._pages: dict[Incarnation, list[SessionKey]] = {}
        self.term = 0
        """See `Cluster`."""
        self._me = self._enter()

    @property
    def incarnation(self) -> Incarnation:
        return self._me.incarnation

    @property
    def doubtful(self) -> bool:
        return self._silent is not None and self._directory.now() - self._silent > lease.DOUBT

    def mine(self, incarnation: Incarnation) -> bool:
        """Whether it is this replica, under its present or a former name."""
        return incarnation in self._names

    def lives(self, incarnation: Incarnation) -> bool:
        """Whether the lease of this one holds."""
        return self._directory.alive(incarnation)

    # The port

    @property
    def schema(self) -> int:
        members = self._directory.members.values()
        others = (one.info["schema"] for one in members if one is not self._me and self.lives(one.incarnation))
        return record.written(others, record.READS)

    def subscribe(self, listener: ClusterListener) -> None:
        self._listeners.append(listener)
        for incarnation in self._down:
            listener.on_down(incarnation)
        self._directory.changed()

    def post(self, to: Incarnation, letter: bytes, done: Done) -> None:
        member = self._directory.members.get(to)
        if member is None or not self._directory.alive(to):
            done(_DEAD)
        elif len(member.inbox) >= INBOX:
            done(_FULL)
        else:
            entry = str(next(self._directory.entries))
            now = self._directory.now()
            member.inbox += [_Letter(entry, letter, now + delay) for delay in self.post_office(to, letter)]
            self._directory.changed()
            done(entry)

    def withdraw(self, to: Incarnation, entry: str, done: Done) -> None:
        member = self._directory.members.get(to)
        waiting = [] if member is None else [letter for letter in member.inbox if letter.entry == entry]
        for letter in waiting:
            assert member is not None
            member.inbox.remove(letter)
        done(bool(waiting))

    def alive(self, incarnation: Incarnation, done: Done) -> None:
        # As long as it is not found dead: one reading that finds no lease says nothing.
        member = self._directory.members.get(incarnation)
        done(member is not None and self._directory.now() < member.told)

    def replicas(self, done: Done) -> None:
        now = self._directory.now()
        done(
            [
                Replica(member.incarnation, now < member.dies, member.info if now < member.dies else {})
                for member in self._directory.members.values()
                if member.listed
            ]
        )

    def owned(self, incarnation: Incarnation, cursor: int, done: Done) -> None:
        if cursor == 0:
            self._pages[incarnation] = self._owned(incarnation)
        page, end = self._pages.get(incarnation, []), cursor + PAGE
        if end >= len(page):
            self._pages.pop(incarnation, None)
        done((page[cursor:end], end if end < len(page) else 0))

    def disown(self, incarnation: Incarnation, keys: Sequence[SessionKey]) -> None:
        member = self._directory.members.get(incarnation)
        if member is not None and not self._directory.alive(incarnation):
            member.disowned.update(keys)
            for key in keys:
                member.left.pop(key, None)
            member.listed = bool(self._owned(incarnation))

    def leave_work(self, key: SessionKey) -> None:
        """It was released, and others can go on with what is in flight there."""
        self._me.left[key] = None

    # What happens to a process

    def kill(self, *, at_once: bool = False) -> None:
        """It is no more, and reaches nobody. The others find out when its lease has run out; `at_once`: when it ends in
        order, or was seen to end."""
        now = self._directory.now()
        self._stopped = self._cut = True
        self._listeners.clear()
        self._dies(now if at_once else now + lease.TTL, now if at_once else now + lease.TTL + TWICE)
        self._directory = Directory(self._directory.now)

    def pause(self) -> None:
        """Nothing of it runs: no beat goes out, no mail is read."""
        self._stopped = True
        self.cut_off()

    def cut_off(self) -> None:
        """It runs, but none of its beats is acknowledged any more."""
        now = self._directory.now()
        self._cut = True
        if self._silent is None:
            self._silent = now
        self._dies(now + lease.TTL, now + lease.TTL + TWICE)

    def resume(self) -> None:
        """It runs and beats again; what this beat says it hears with the next turn of `run`."""
        self._stopped = self._cut = False
        self._directory.changed()

    def find_loss(self) -> None:
        """It finds out that the store has lost writes (`MemoryStore.lose`)."""
        self.term += 1
        for listener in self._listeners:
            listener.on_loss()

    def _dies(self, dies: float, told: float) -> None:
        self._me.dies, self._me.told = min(self._me.dies, dies), min(self._me.told, told)
        self._directory.changed()

    # What its lease and its inbox do

    async def run(self) -> None:
        """Does what there is to do, until it is cancelled. One at a time."""
        while True:
            await self._directory.wait(self.look())

    def look(self) -> float:
        """Does what is to be done now; when to look again."""
        if self._silent is not None and not self._cut:
            self._beat()
        return min(self._read(), self._watch()) if self._listeners and not self._stopped else math.inf

    def _beat(self) -> None:
        """The first beat after a silence."""
        doubtful, former, self._silent = self.doubtful, self._me, None
        if self._directory.alive(former.incarnation):
            former.dies = former.told = math.inf
        else:
            self._me = self._enter()
            self.term += 1
            self._renamed(self.incarnation)
            for listener in self._listeners:
                listener.on_renamed(former.incarnation, self.incarnation)
        for listener in self._listeners if doubtful else ():
            listener.on_certain()

    def _enter(self) -> _Member:
        member = _Member(token_hex(8), self._info)
        self._directory.members[member.incarnation] = member
        self._names.add(member.incarnation)
        self._directory.changed()
        return member

    def _read(self) -> float:
        """Hands over the letters that are due; when the next one is."""
        inbox, now, taken = self._me.inbox, self._directory.now(), []
        while inbox and inbox[0].due <= now:
            taken.append(inbox.popleft().data)
        for start in range(0, len(taken), LETTERS):
            for listener in self._listeners:
                listener.on_mail(taken[start : start + LETTERS])
        return inbox[0].due if inbox else math.inf

    def _watch(self) -> float:
        """Tells of the dead; when the next one is found."""
        now, then = self._directory.now(), math.inf
        for member in self._directory.members.values():
            if member.incarnation in self._names or member.incarnation in self._down:
                continue
            if member.told > now:
                then = min(then, member.told)
                continue
            self._down.add(member.incarnation)
            for listener in self._listeners:
                listener.on_down(member.incarnation)
        return then

    def _owned(self, incarnation: Incarnation) -> list[SessionKey]:
        member = self._directory.members.get(incarnation)
        if member is None:
            return []
        of_record = [key for key, owner in self._owners() if owner == incarnation and key not in member.disowned]
        return [*of_record, *(key for key in member.left if key not in of_record)]
