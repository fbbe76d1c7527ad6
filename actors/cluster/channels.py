"""Clients whose messages come one POST at a time, perhaps to other replicas, while what they are told goes out on one
stream of this one (HTTP+SSE of 2024-11-05).

What names such a channel to its client is sealed: who has it, and the principal that may speak on it, so that any
replica can pass a message on, and nobody can make one up. A message is passed on at most once.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from actors.cluster import letters as lt
from actors.cluster.letters import Letter
from actors.ports import Failed, Incarnation, Principal, Refused
from actors.services import Services

WAITING: Final = 64
"""Messages that wait on one channel; a further one gets 503."""
ACCEPTED, UNKNOWN, BUSY = 202, 404, 503
CONTEXT: Final = b"channel:"


class Channels:
    """Of one replica."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[str, trio.MemorySendChannel[bytes]] = {}
        self._asked: dict[int, tuple[trio.Event, list[int]]] = {}
        self._next = -1
        """Below zero: an answer can't be taken for one to a letter of the mailer's own."""

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, principal: Principal) -> Iterator[tuple[str, trio.MemoryReceiveChannel[bytes]]]:
        """A channel for the time of the block: what names it to its client, and the client's messages."""
        id = secrets.token_hex(16)
        self._open[id], messages = trio.open_memory_channel[bytes](WAITING)
        named = f"{id} {self._services.cluster.incarnation}".encode()
        try:
            yield self._services.sealer.seal(named, _context(principal)), messages
        finally:
            del self._open[id]

    async def say(self, token: str, principal: Principal, body: bytes) -> int:
        """Passes on a message of a client; an HTTP status. A foreign channel looks like one that is not there."""
        named = self._services.sealer.unseal(token, _context(principal))
        if named is None:
            return UNKNOWN
        id, _, incarnation = named.decode().partition(" ")
        if id in self._open or incarnation == self._services.cluster.incarnation:
            return self._put(id, body)
        return await self._mail(incarnation, principal, lt.Said(id, body))

    def _put(self, id: str, body: bytes) -> int:
        channel = self._open.get(id)
        if channel is None:
            return UNKNOWN
        try:
            channel.send_nowait(body)
        except trio.WouldBlock:
            return BUSY
        return ACCEPTED

    async def _mail(self, to: Incarnation, principal: Principal, said: lt.Said) -> int:
        cluster, mid = self._services.cluster, self._next
        self._next -= 1
        heard, status = self._asked[mid] = trio.Event(), []

        def posted(outcome: object) -> None:
            if isinstance(outcome, Failed):
                status.append(UNKNOWN if outcome.reason is Refused.DEAD else BUSY)
                heard.set()

        cluster.post(to, lt.encode(Letter("", (cluster.incarnation, mid), said, principal, "")), posted)
        try:
            with trio.move_on_after(self._services.limits.admission):
                await heard.wait()
        finally:
            del self._asked[mid]
        return status[0] if status else BUSY

    def take(self, letter: Letter) -> None:
        """A letter about a channel, from another replica."""
        to, mid = letter.reply
        match letter.body:
            case lt.Said(id, body):
                status, cluster = self._put(id, body), self._services.cluster
                answer = Letter("", (cluster.incarnation, mid), lt.Heard(status), letter.principal, "")
                cluster.post(to, lt.encode(answer), lambda outcome: None)
            case lt.Heard(status):
                asked = self._asked.get(mid)
                if asked is not None:
                    asked[1].append(status)
                    asked[0].set()


def _context(principal: Principal) -> bytes:
    return CONTEXT + (b"-" if principal.anonymous else b"+") + principal.name.encode()
