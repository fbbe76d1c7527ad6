"""The lease of this process: the sign of life in Redis by which the others know that it runs.

What follows from a beat, or from none, is decided by the pure machine; here it is done. The age of a lease counts by
the clock of this machine alone, from the moment at which the last beat that was acknowledged had been sent.
"""

import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol, assert_never

from actors.machines.cluster import lease as machine
from actors.machines.cluster.lease import LeaseEffect, LeaseEvent, LeasePhase
from gateway.store.redis.clock import boottime
from gateway.store.redis.errors import LinkDown
from gateway.store.redis.keys import REPLICAS, alive_key, inbox_key, owned_key, seen_key
from gateway.store.redis.links import Command, History, Link, anew, replies_to
from gateway.store.redis.operations import ms
from gateway.store.redis.scripts import SHA

OWNED_TTL = 86_400.0
INBOX_TTL = 120.0
"""Seconds that a dead replica's list of sessions, and its mail, can still be looked at."""


class LeaseListener(Protocol):
    """Is told on the lease's thread, or the directory's."""

    def renamed(self, former: str, now: str) -> None:
        """This process goes on as a fresh incarnation, which has a lease."""

    def doubted(self) -> None:
        """Redis was not heard of for a while."""

    def certain(self) -> None:
        """A doubt is over."""

    def forgot(self) -> None:
        """Redis may have lost what it had acknowledged; the incarnation is the same."""


class Lease:
    """One incarnation after another of this process. The beats are sent on one thread; the rest may be asked on any."""

    def __init__(self, link: Link, info: bytes, listener: LeaseListener) -> None:
        self.incarnation = secrets.token_hex(8)
        self.names = {self.incarnation}
        """All that this process was ever called."""
        self.ticked = boottime()
        """When the loop last ran; the loop sets it."""
        self.ahead = 0.0
        """Seconds by which the clock of Redis is ahead of `boottime`."""
        self.link = link
        self._info = info
        self._listener = listener
        self._state = machine.Lease()
        self._former = self.incarnation
        self._histories: Mapping[str, History] = {}
        """Of the primaries, as they were when they were last asked."""
        self._stopped = threading.Event()
        self._stepping = threading.RLock()

    # Any thread

    def stop(self) -> None:
        """Ends `run`, which then gives the lease up."""
        self._stopped.set()

    @property
    def doubtful(self) -> bool:
        """Whether others may believe this process dead."""
        state = self._state
        return state.doubted or boottime() - state.acknowledged > machine.DOUBT

    @property
    def may_claim(self) -> bool:
        """Whether what others' leases look like can be trusted: its own was unbroken for as long as one lasts."""
        return machine.may_claim(self._state, boottime())

    def age(self) -> float:
        """Seconds since the last acknowledged beat was sent."""
        return boottime() - self._state.acknowledged

    def now(self) -> float:
        """Seconds by the clock of Redis, as of the last beat that it acknowledged."""
        return boottime() + self.ahead

    # The lease's thread

    def run(self) -> None:
        """The body of the thread. Nothing else is done there: whatever waits for Redis must not delay a beat."""
        try:
            due = time.monotonic()
            while not self._stopped.wait(max(0.0, due - time.monotonic())):
                due = time.monotonic() + machine.EVERY
                self.beat()
        finally:
            with suppress(LinkDown):
                self.end()
            self.link.close()

    def begin(self) -> None:
        """Takes the lease. LinkDown."""
        self._step(machine.BeatDue(boottime(), self.ticked))

    def beat(self) -> None:
        """Renews it, unless the loop stands still; where it has lapsed, the next incarnation takes one."""
        try:
            self._step(machine.BeatDue(boottime(), self.ticked))
            if self._state.phase is LeasePhase.LAPSED:
                self._step(machine.BeatDue(boottime(), self.ticked))
        except LinkDown:
            self._step(machine.Looked(boottime()))

    def end(self) -> None:
        """Gives it up, in order. LinkDown."""
        self._step(machine.DrainBegun())
        self._step(machine.Drained())

    # The directory's thread

    def look(self, link: Link, key: str | None = None) -> None:
        """Whether Redis is another than it was, or the primary that has this key, and may have lost something: a
        failover can be quicker than a lease. LinkDown."""
        before, now = self._histories, link.histories(key)
        self._histories = {**before, **now}
        if anew(before, now):
            self.forgotten()

    def forgotten(self) -> None:
        """Redis has lost something: perhaps what others own, and signs of life."""
        self.link.renew()
        self._step(machine.Forgot(boottime()))

    # Both

    def _step(self, event: LeaseEvent) -> None:
        with self._stepping:
            self._state, effects = machine.step(self._state, event)
            self._run(effects)

    def _run(self, effects: Iterable[LeaseEffect]) -> None:
        for effect in effects:
            match effect:
                case machine.Beat(take):
                    self._beat(take=take)
                case machine.Rename():
                    self._former, self.incarnation = self.incarnation, secrets.token_hex(8)
                    self.names.add(self.incarnation)
                case machine.VerifyAgain():
                    self._listener.forgot()
                case machine.Verify():
                    self._listener.renamed(self._former, self.incarnation)
                    self._listener.certain()
                case machine.Certain():
                    self._listener.certain()
                case machine.GiveUp():
                    self._replies(*ended(self.incarnation))
                    if not self._replies(("EXISTS", owned_key(self.incarnation)))[0]:
                        self._replies(("ZREM", REPLICAS, self.incarnation))
                case machine.Doubt():
                    self._listener.doubted()
                case _:
                    assert_never(effect)

    def _beat(self, *, take: bool) -> None:
        if take:
            with suppress(LinkDown):
                self._histories = {**self._histories, **self.link.histories()}
        sent, name = boottime(), self.incarnation
        keys = (alive_key(name), owned_key(name), inbox_key(name), seen_key(name))
        args = (ms(machine.TTL), self._info, ms(OWNED_TTL), ms(INBOX_TTL), int(take))
        [reply] = self._replies(("EVALSHA", SHA["beat"], len(keys), *keys, *args))
        event: LeaseEvent
        match reply:
            case [b"OK", int(now)]:
                self.ahead, event = now / 1000 - boottime(), machine.Beaten(sent, boottime())
            case _:
                event = machine.Lapsed(boottime())
        if take:
            self._replies(("EVALSHA", SHA["register"], 1, REPLICAS, name))
        self._step(event)

    def _replies(self, *commands: Command) -> list[object]:
        return replies_to(self.link, commands)


def ended(incarnation: str) -> list[Command]:
    """What says of an incarnation that it is over for sure; what it left can be taken over at once."""
    return [("DEL", alive_key(incarnation)), ("ZADD", REPLICAS, "XX", 0, incarnation)]
