"""The lease of this process, and the question whether another's still runs.

In this form one process at a time works on a store: who comes second waits until the first one's lease has run out,
and else refuses to start. All of it runs on one thread with a connection of its own.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeAlias

from gateway.store.redis.clock import boottime
from gateway.store.redis.errors import LinkDown
from gateway.store.redis.links import Command, Link, Reply, lacks_function
from gateway.store.redis.scripts import SHA
from gateway.store.rules import SCHEMA

TTL = 3.0
EVERY = 0.5
"""Seconds of a lease, and between its renewals."""

TICK_WITHIN = 1.5
"""A loop that did not run for so many seconds must look dead."""

TWICE = 0.5
"""Seconds between the two readings that find an incarnation dead."""

OWNED_TTL = 86_400.0

REPLICAS = "sd:c:{c}:replicas"

OnAlive: TypeAlias = Callable[[bool | None], object]
"""Told whether an incarnation is alive; None: Redis can't be asked."""


_INFO = json.dumps({"schema": [SCHEMA, SCHEMA], "host": socket.gethostname(), "pid": os.getpid()})


@dataclass(frozen=True, slots=True)
class Holder:
    """Another living incarnation. `left`: seconds until its lease runs out, if it is not renewed."""

    incarnation: str
    info: str
    left: float


def alive_key(incarnation: str) -> str:
    """The string that is there as long as the lease."""
    return f"sd:r:{{{incarnation}}}:alive"


def owned_key(incarnation: str) -> str:
    """The set of sessions that an incarnation may own: all that it does own, and maybe more."""
    return f"sd:r:{{{incarnation}}}:owned"


class Lease:
    """One incarnation after another of this process.

    `post` runs a function on the loop's thread; there `on_lost(reason)` is told that another process has the store, and
    `on_renamed(incarnation)` of a fresh incarnation after a lapse.
    """

    def __init__(
        self,
        link: Link,
        post: Callable[[Callable[[], object]], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.on_renamed: Callable[[str], None] = lambda _: None
        self.incarnation = secrets.token_hex(8)
        self.ticked = time.monotonic()
        """When the loop last ran; the loop sets it."""
        self.acknowledged = boottime()
        """When the last renewal that was acknowledged had been sent, on the clock that counts suspended time."""
        self._link = link
        self._post = post
        self._on_lost = on_lost
        self._former: set[str] = set()
        self._gone_since: dict[str, float] = {}
        self._questions: SimpleQueue[tuple[str, OnAlive] | None] = SimpleQueue()
        self._waiting: dict[str, list[OnAlive]] = {}
        self._held = False

    # The loop's thread

    def mine(self, incarnation: str) -> bool:
        """Whether it is this process, under its present or a former name."""
        return incarnation == self.incarnation or incarnation in self._former

    def ask(self, incarnation: str, on_alive: OnAlive) -> None:
        """Asks whether another incarnation is alive; dead is what was gone in two readings half a second apart."""
        self._questions.put((incarnation, on_alive))

    def age(self) -> float:
        """Seconds since the last acknowledged renewal was sent."""
        return boottime() - self.acknowledged

    def stop(self) -> None:
        """Ends `run`, which then gives the lease up."""
        self._questions.put(None)

    # The lease's thread

    def take(self) -> Holder | None:
        """Takes the lease, or says who has it. LinkDown."""
        if holder := self._living(self._replies(("ZRANGE", REPLICAS, 0, -1))[0]):
            return holder
        self._set(take=True)
        earlier = self._replies(("EVALSHA", SHA["register"], 1, REPLICAS, self.incarnation))[0][1]
        # Of two that start at once the later one sees the earlier one here, whose `alive` was set before it registered.
        if holder := self._living(earlier):
            self._give_up()
            return holder
        self._held = True
        return None

    def run(self) -> None:
        """Renews the lease and answers questions until it is stopped. The body of the thread."""
        due = time.monotonic()
        try:
            while self._listen(min(due - time.monotonic(), TWICE / 5 if self._waiting else EVERY)):
                for incarnation in list(self._waiting):
                    self._answer(incarnation)
                if time.monotonic() >= due:
                    due = time.monotonic() + EVERY
                    if not self._beat():
                        return
        finally:
            for incarnation in list(self._waiting):
                self._tell(incarnation, None)
            with suppress(LinkDown):
                self._give_up()
            self._link.close()

    def _listen(self, timeout: float) -> bool:
        """Takes the questions that come within so many seconds. False: stopped."""
        try:
            question = self._questions.get(timeout=max(0.0, timeout))
            while question is not None:
                self._waiting.setdefault(question[0], []).append(question[1])
                question = self._questions.get_nowait()
        except Empty:
            return True
        return False

    def _beat(self) -> bool:
        """Renews the lease, unless the loop stands still. False: another process has the store."""
        if time.monotonic() - self.ticked > TICK_WITHIN:
            return True
        try:
            return self._renew() if self._held else self._retake()
        except LinkDown:
            return True

    def _renew(self) -> bool:
        if self._set(take=False):
            return True
        # Others may have found this incarnation dead: it does not come back, its successor claims from it.
        self._former.add(self.incarnation)
        lapsed, self.incarnation, self._held = self.incarnation, secrets.token_hex(8), False
        self._replies(("ZREM", REPLICAS, lapsed))
        return self._retake()

    def _retake(self) -> bool:
        holder = self.take()
        if holder is None:
            incarnation = self.incarnation
            self._post(lambda: self.on_renamed(incarnation))
            return True
        reason = f"the lease ran out, and another process took the store: {describe(holder)}"
        self._post(lambda: self._on_lost(reason))
        return False

    def _set(self, *, take: bool) -> bool:
        """Renews (or takes) the lease; False if it had lapsed."""
        sent = boottime()
        keys = (alive_key(self.incarnation), owned_key(self.incarnation))
        args = (round(TTL * 1000), _INFO, round(OWNED_TTL * 1000), int(take))
        if self._replies(("EVALSHA", SHA["beat"], 2, *keys, *args))[0] != b"OK":
            return False
        self.acknowledged = sent
        return True

    def _give_up(self) -> None:
        self._held = False
        self._replies(("DEL", alive_key(self.incarnation)), ("ZREM", REPLICAS, self.incarnation))

    def _living(self, incarnations: list[bytes]) -> Holder | None:
        """The first of them that is alive and not this process. The dead are noted; those that left nothing go."""
        for other in (raw.decode() for raw in incarnations):
            if self.mine(other):
                continue
            info, left, owned = self._replies(
                ("GET", alive_key(other)), ("PTTL", alive_key(other)), ("EXISTS", owned_key(other))
            )
            if info is not None:
                return Holder(other, info.decode(), max(0, left) / 1000)
            self._gone_since.setdefault(other, time.monotonic())
            if not owned:
                self._replies(("ZREM", REPLICAS, other))
        return None

    def _answer(self, incarnation: str) -> None:
        """Tells those who asked, if it is known by now."""
        try:
            alive = self._replies(("EXISTS", alive_key(incarnation)))[0]
        except LinkDown:
            return self._tell(incarnation, None)
        if alive:
            self._gone_since.pop(incarnation, None)
            return self._tell(incarnation, True)
        if time.monotonic() - self._gone_since.setdefault(incarnation, time.monotonic()) >= TWICE:
            return self._tell(incarnation, False)
        return None

    def _tell(self, incarnation: str, alive: bool | None) -> None:
        asking = self._waiting.pop(incarnation)
        self._post(lambda: [on_alive(alive) for on_alive in asking])

    def _replies(self, *commands: Command) -> list[Reply]:
        replies = self._link.exchange(commands)
        if any(lacks_function(reply) for reply in replies):
            self._link.prepare()
            replies = self._link.exchange(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise LinkDown(str(reply)) from reply
        return replies


def describe(holder: Holder) -> str:
    """Who it is, in words."""
    try:
        info = json.loads(holder.info)
        return f"process {info['pid']} on {info['host']} (incarnation {holder.incarnation})"
    except (ValueError, KeyError, TypeError):
        return f"incarnation {holder.incarnation}"
