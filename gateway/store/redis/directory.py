"""Who else works on this store: the thread that looks after the leases of the other replicas.

It and the lease of this one have connections of their own: neither a busy writer nor a primary of a cluster that says
nothing of others delays a beat. A dead incarnation never comes back, so what was once found dead needs no further look.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from actors.machines.cluster import lease as machine
from actors.machines.session import record
from actors.ports import Done, Failed, Incarnation, Refused, Replica, SessionKey
from gateway.store.redis.errors import LinkDown, StoreKeysDiffer
from gateway.store.redis.keys import REPLICAS, SEALING, alive_key, owned_key
from gateway.store.redis.lease import Lease
from gateway.store.redis.links import Command, Link, replies_of_each, replies_to
from gateway.store.redis.scripts import SHA
from gateway.store.rules import TWICE

WATCH = 1.0
"""Seconds between two looks at the others, unless one is due to die sooner."""

LATE = 0.02
"""Seconds after which a lease that was to run out is looked at."""

DEAD = 10_000
"""Incarnations remembered as dead; the oldest are forgotten first."""

PAGE = 200
"""About so many sessions in a page of what an incarnation owns."""

Post: TypeAlias = Callable[[Callable[[], object]], None]
OnAlive: TypeAlias = Callable[[bool | None], object]
"""Told whether an incarnation is alive; None: Redis can't be asked."""

_AWAY = Failed(Refused.AWAY, "the directory can't be asked")


class Directory:
    """`beats` is the link of the lease. `post` runs a function on the loop's thread. There `on_down` is told of an
    incarnation that was found dead, `on_renamed`, `on_doubt` and `on_certain` of this replica's own lease, `on_loss` of
    a Redis that may have lost something."""

    def __init__(self, link: Link, beats: Link, post: Post, info: Mapping[str, Any]) -> None:
        self.on_down: Callable[[Incarnation], object] = lambda _: None
        self.on_renamed: Callable[[Incarnation, Incarnation], object] = lambda former, now: None
        self.on_doubt: Callable[[], object] = lambda: None
        self.on_certain: Callable[[], object] = lambda: None
        self.on_loss: Callable[[], object] = lambda: None
        self.lease = Lease(beats, json.dumps(info).encode(), self)
        self.dead: dict[Incarnation, None] = {}
        """Found dead, oldest first; on any thread."""
        self._link = link
        self._post = post
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.known: set[Incarnation] = set()
        """Seen alive, and not found dead since."""
        self.schema = record.READS[0]
        """The version in which records are written."""
        self._reads: dict[Incarnation, Any] = {}
        """The versions that each of them reads."""
        self._gone_since: dict[Incarnation, float] = {}
        self._asked: dict[tuple[Incarnation, bool], list[OnAlive]] = {}

    # The loop's thread

    def mine(self, incarnation: Incarnation) -> bool:
        """Whether it is this process, under its present or a former name."""
        return incarnation in self.lease.names

    def ask(self, incarnation: Incarnation, on_alive: OnAlive, *, to_claim: bool = False) -> None:
        """Asks whether another incarnation is alive; dead is what was gone in two readings half a second apart.
        `to_claim`: nor does anybody hear that before this replica's own lease was unbroken for as long as one lasts.
        (When Redis comes back, every replica looks dead to every other.)"""
        if incarnation in self.dead and not to_claim:
            on_alive(False)
        else:
            self._jobs.put(lambda: self._asked.setdefault((incarnation, to_claim), []).append(on_alive))

    def replicas(self, done: Done) -> None:
        """See `Cluster`."""
        self._ask_for(self._replicas, done)

    def owned(self, incarnation: Incarnation, cursor: int, done: Done) -> None:
        """See `Cluster`."""
        self._ask_for(lambda: self._owned(incarnation, cursor), done)

    def disown(self, incarnation: Incarnation, keys: Sequence[SessionKey]) -> None:
        """See `Cluster`."""
        self._ask_for(lambda: self._disown(incarnation, keys), lambda _: None)

    def stop(self) -> None:
        """Ends `run`, when what was asked for is done."""
        self._jobs.put(None)

    def _ask_for(self, ask: Callable[[], Any], done: Done) -> None:
        def job() -> None:
            try:
                outcome = ask()
            except LinkDown:
                outcome = _AWAY
            self._post(lambda: done(outcome))

        self._jobs.put(job)

    # The lease's listener

    def renamed(self, former: str, now: str) -> None:
        """See `LeaseListener`."""
        self._post(lambda: self.on_renamed(former, now))

    def doubted(self) -> None:
        """See `LeaseListener`."""
        self._post(self.on_doubt)

    def certain(self) -> None:
        """See `LeaseListener`."""
        self._post(self.on_certain)

    def forgot(self) -> None:
        """See `LeaseListener`."""
        self._post(self.on_loss)

    # The thread

    def begin(self, seals: Sequence[str]) -> bool:
        """Takes the lease, unless another replica that lives seals otherwise: LinkDown, StoreKeysDiffer. `seals` are
        the fingerprints of this replica's keys, the one that it seals with first. False: the key is another than that
        of all who were here before."""
        self.lease.begin()
        try:
            return not seals or self._seals_alike(seals)
        except StoreKeysDiffer:
            with suppress(LinkDown):
                self.lease.end()
            raise

    def run(self) -> None:
        """The body of the thread."""
        look = time.monotonic()
        try:
            while self._work_until(look):
                self._answer()
                now = time.monotonic()
                if now >= look:
                    with suppress(LinkDown):
                        self.lease.look(self._link)
                    look = now + self._look()
        finally:
            for key in list(self._asked):
                self._tell(key, None)
            self._link.close()

    def _work_until(self, due: float) -> bool:
        """Does what is asked for meanwhile. False: stopped."""
        patience = TWICE / 5 if self._asked else WATCH
        with suppress(Empty):
            job = self._jobs.get(timeout=max(0.0, min(due - time.monotonic(), patience)))
            while job is not None:
                job()
                if time.monotonic() >= due:
                    return True
                job = self._jobs.get_nowait()
            return False
        return True

    # Who lives

    def _answer(self) -> None:
        """Tells those who asked, if it is known by now."""
        names = list({incarnation for incarnation, _ in self._asked if incarnation not in self.dead})
        try:
            left = dict(zip(names, self._left(names), strict=True))
        except LinkDown:
            left = dict.fromkeys(names)
        for key in list(self._asked):
            incarnation, to_claim = key
            try:
                if incarnation not in self.dead and self._lives(incarnation, left[incarnation]):
                    self._tell(key, True)
                elif self._gone_twice(incarnation) and (self.lease.may_claim or not to_claim):
                    self._tell(key, False)
            except LinkDown:
                self._tell(key, None)

    def _tell(self, key: tuple[Incarnation, bool], alive: bool | None) -> None:
        asking = self._asked.pop(key)
        self._post(lambda: [on_alive(alive) for on_alive in asking])

    def _left(self, names: Sequence[Incarnation]) -> list[Any]:
        """How long each of them still has a lease. One primary of a cluster that is away hides only what it has."""
        return replies_of_each(self._link, [("PTTL", alive_key(name)) for name in names])

    def _lives(self, incarnation: Incarnation, left: Any) -> bool:
        """What `_left` says of it. LinkDown."""
        if left != _GONE:
            self._gone_since.pop(incarnation, None)
        if left is None:
            raise LinkDown(f"the primary that has the lease of {incarnation} is away")
        return bool(left != _GONE)

    def _gone_twice(self, incarnation: Incarnation) -> bool:
        """Whether it was gone in two readings. A primary that has just taken over lacks the sign of life of one that
        lives, and had no primary to renew it at; or it says of what a process owns under its present name that a former
        one does. That is looked at before anybody asks `may_claim`. LinkDown."""
        now = time.monotonic()
        twice = incarnation in self.dead or now - self._gone_since.setdefault(incarnation, now) >= TWICE
        if twice:
            self.lease.look(self._link, alive_key(incarnation))
        return twice

    def _look(self) -> float:
        """Looks who of the others lives; seconds to the next look."""
        try:
            return self._looked()
        except LinkDown:
            self._gone_since.clear()
            return WATCH

    def _looked(self) -> float:
        began = self._began()
        others = [name for name in {*began, *self.known} if name not in self.lease.names and name not in self.dead]
        soon = WATCH
        for name, left in zip(others, self._left(others), strict=True):
            with suppress(LinkDown):
                # Who has ended in order is at 0, or no more in a list in which we are.
                in_order = not began.get(name, 0) and self.lease.incarnation in began
                soon = min(soon, self._look_at(name, left, in_order=in_order))
        self._choose_schema()
        if began:
            self._forget(name for name in began if name != self.lease.incarnation and name not in self.known)
        return max(soon, LATE)

    def _began(self) -> Mapping[Incarnation, float]:
        """Who was ever here, and when each began. Nobody: the list can't be read."""
        [found] = replies_of_each(self._link, [_LIST])
        began: dict[str, float] = {name.decode(): score for name, score in found or ()}
        if found is not None and self.lease.incarnation not in began:
            # With the list the signs of life may have been lost that were at the same primary.
            self.lease.forgotten()
            self._replies([("EVALSHA", SHA["register"], 1, REPLICAS, self.lease.incarnation)])
        return began

    def _look_at(self, name: Incarnation, left: Any, *, in_order: bool) -> float:
        """One of the others; seconds to the next look at it. LinkDown."""
        if self._lives(name, left):
            self.known.add(name)
            # A lease that is not renewed is looked at when it has run out, and the second time in time.
            ends_soon = 0 <= left < (machine.TTL - 2 * machine.EVERY) * 1000
            return float(left / 1000 + LATE) if ends_soon else WATCH
        if in_order or (self._gone_twice(name) and self.lease.may_claim):
            self._found_dead(name)
            return WATCH
        second = TWICE + self._gone_since.setdefault(name, time.monotonic()) - time.monotonic()
        return max(second, TWICE / 5)

    def _choose_schema(self) -> None:
        """Who came just now, and reads less, hands what it can't read to those who can."""
        new = [name for name in self.known if name not in self._reads]
        found = replies_of_each(self._link, [("GET", alive_key(name)) for name in new])
        for name, info in zip(new, found, strict=True):
            if info is not None:
                self._reads[name] = _read(info).get("schema")
        self._reads = {name: reads for name, reads in self._reads.items() if name in self.known}
        self.schema = record.written(self._reads.values(), record.READS)

    def _found_dead(self, incarnation: Incarnation) -> None:
        """Another one was, or it has ended: it is told if it was seen alive, or has left sessions. LinkDown."""
        matters = incarnation in self.known or self._replies([("EXISTS", owned_key(incarnation))])[0]
        self.dead[incarnation] = None
        while len(self.dead) > DEAD:
            del self.dead[next(iter(self.dead))]
        if matters:
            self._post(lambda: self.on_down(incarnation))
        self.known.discard(incarnation)
        self._gone_since.pop(incarnation, None)

    def _forget(self, incarnations: Iterable[Incarnation]) -> None:
        """Those of them that are dead and have left nothing are seen no more."""
        names = [name for name in incarnations if name in self.dead or name in self.lease.names]
        left = replies_of_each(self._link, [("EXISTS", owned_key(name)) for name in names])
        self._replies(("ZREM", REPLICAS, name) for name, owns in zip(names, left, strict=True) if owns == 0)

    # What else is asked

    def _replicas(self) -> list[Replica]:
        names = [name.decode() for name, _ in self._replies([_LIST])[0]]
        found = self._replies(("GET", alive_key(name)) for name in names)
        return [Replica(name, info is not None, _read(info)) for name, info in zip(names, found, strict=True)]

    def _owned(self, incarnation: Incarnation, cursor: int) -> tuple[list[SessionKey], int]:
        [(after, keys)] = self._replies([("SSCAN", owned_key(incarnation), cursor, "COUNT", PAGE)])
        return [key.decode() for key in keys], int(after)

    def _disown(self, incarnation: Incarnation, keys: Sequence[SessionKey]) -> None:
        if incarnation != self.lease.incarnation and (incarnation in self.dead or self.mine(incarnation)):
            self._replies([("SREM", owned_key(incarnation), *keys)] if keys else [])
            self._forget([incarnation])

    def _seals_alike(self, seals: Sequence[str]) -> bool:
        [stored] = self._replies([("GET", SEALING)])
        if stored is None:
            _, stored = self._replies([("SET", SEALING, seals[0], "NX"), ("GET", SEALING)])
        known = stored.decode() in seals
        if not known:
            for other in self._replicas():
                if other.alive and other.incarnation != self.lease.incarnation:
                    raise StoreKeysDiffer(describe(other))
        if stored.decode() != seals[0]:
            self._replies([("SET", SEALING, seals[0])])
        return known

    def _replies(self, commands: Iterable[Command]) -> list[Any]:
        return replies_to(self._link, list(commands))


_LIST: Command = ("ZRANGE", REPLICAS, 0, -1, "WITHSCORES")
_GONE = -2
"""What PTTL says of a key that is not there."""


def describe(replica: Replica) -> str:
    """Who it is, in words."""
    host, pid = replica.info.get("host"), replica.info.get("pid")
    return f"process {pid} on {host}" if host and pid else f"incarnation {replica.incarnation}"


def _read(info: bytes | None) -> Mapping[str, Any]:
    try:
        found = json.loads(info or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
