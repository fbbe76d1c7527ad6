"""Clients whose messages come one POST at a time, perhaps to other replicas, while what they are told goes out on one
stream of this one (HTTP+SSE of 2024-11-05).

What names such a channel to its client is sealed: who has it, and the principal that may speak on it, so that any
replica can pass a message on, and nobody can make one up. A message is passed on at most once: what is refused for now
was surely not, else it is said that nobody knows. A replica whose lease has lapsed has another name since, and its
channels are asked for wherever somebody lives.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import trio

from actors.cluster import letters as lt
from actors.cluster.letters import Letter
from actors.ports import NO_RIGHTS, Done, Failed, Incarnation, Principal, Refused, Replica, Rights
from actors.runtime.places import Place
from actors.services import Services

WAITING: Final = 64
"""Messages that wait on one channel; a further one waits for a place among them, and gets 503 if none comes."""
LARGE: Final = 16 * 1024
"""Bytes of a message from which on it counts: nearly every one is smaller, and must not suffer from large ones."""
RENAMED: Final = 256
"""Replicas under another name than their channels say that are remembered."""
ACCEPTED, UNKNOWN, BUSY, UNSURE = 202, 404, 503, 504
CONTEXT: Final = b"channel:"

_Saying: TypeAlias = tuple[Principal, lt.Said, Rights]
"""Who says what on a channel, with what rights."""


class Messages:
    """The messages of one channel, as they come. `rights`: of the last one that was received."""

    def __init__(self, channels: "Channels", principal: Principal, rights: Rights, endpoint: str) -> None:
        self.principal = principal
        self.endpoint = endpoint
        self.rights = rights
        self._channels = channels
        self._left: list[tuple[bytes, Rights]] = []
        self._outside: deque[_Outside] | None = None
        """Who waits for a place, in the order of asking."""
        self._place = Place()
        self._ready: Callable[[], object] | None = None
        self._woken = False

    @property
    def full(self) -> bool:
        """Whether the next message has to wait for a place."""
        return len(self._left) >= WAITING or bool(self._outside)

    def put(self, body: bytes, rights: Rights) -> bool:
        """Adds a message; False: there is no room."""
        if self.full or not self._channels.room_for(body):
            return False
        self._add(body, rights)
        self._tell()
        return True

    async def put_within(self, patience: float, body: bytes, rights: Rights) -> int:
        """Adds a message as soon as there is a place for it, within so many seconds; an HTTP status."""
        if not self.full:
            return ACCEPTED if self.put(body, rights) else BUSY
        if self._outside is None:
            self._outside = deque()
        one = _Outside(body, rights)
        self._outside.append(one)
        try:
            with trio.move_on_after(patience):
                await one.place.wait()
        finally:
            if one.status is None:
                self._outside.remove(one)
        return BUSY if one.status is None else one.status

    def _add(self, body: bytes, rights: Rights) -> None:
        self._left.append((body, rights))
        self._channels.held += counted(body)

    @property
    def waiting(self) -> bool:
        """Whether there is something to receive."""
        return bool(self._left) or self._woken

    def listen(self, ready: Callable[[], object]) -> None:
        """Has it called whenever there is something to receive, and nobody waits for that."""
        self._ready = ready

    def wake(self) -> None:
        """Has whoever receives look up."""
        self._woken = True
        self._tell()

    def _tell(self) -> None:
        if not self._place.wake() and self._ready is not None:
            self._ready()

    async def receive(self) -> bytes | None:
        """The next one; None after `wake`."""
        while not self._left:
            if self._woken:
                self._woken = False
                return None
            await self._place.wait()
        body, self.rights = self._left.pop(0)
        self._channels.held -= counted(body)
        self._let_in()
        return body

    def _let_in(self) -> None:
        """Gives the places that are free to whoever has waited longest, so that nobody comes before him."""
        while self._outside and len(self._left) < WAITING:
            one = self._outside.popleft()
            room = self._channels.room_for(one.body)
            if room:
                self._add(one.body, one.rights)
            one.settle(ACCEPTED if room else BUSY)

    def drop(self) -> None:
        """Nobody receives them any more."""
        self._ready = None
        for body, _ in self._left:
            self._channels.held -= counted(body)
        self._left.clear()
        while self._outside:
            self._outside.popleft().settle(UNKNOWN)


class _Outside:
    """A message that waits for a place. `status` is that of its HTTP request, once it is known."""

    def __init__(self, body: bytes, rights: Rights) -> None:
        self.body, self.rights = body, rights
        self.status: int | None = None
        self.place = Place()

    def settle(self, status: int) -> None:
        self.status = status
        self.place.wake()


class Channels:
    """The channels whose streams are in this process, and the mail for those of other replicas."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[str, Messages] = {}
        self._sealed: dict[str, Messages] = {}
        """The same by what names them to their clients."""
        self._asked: dict[int, _Mailed] = {}
        self._renamed: dict[Incarnation, Incarnation] = {}
        self._next = -1
        """Below zero: an answer can't be taken for one to a letter of the mailer's own."""
        self.held = 0
        """Bytes of large messages that wait."""

    def __len__(self) -> int:
        return len(self._open)

    def room_for(self, body: bytes) -> bool:
        """Whether one more may wait."""
        return self.held + counted(body) <= self._services.limits.bodies_bytes

    @contextmanager
    def opened(
        self, principal: Principal, rights: Rights = NO_RIGHTS, endpoint: str = ""
    ) -> Iterator[tuple[str, Messages]]:
        """A channel for the time of the block: what names it to its client, and the client's messages."""
        id = secrets.token_hex(16)
        messages = self._open[id] = Messages(self, principal, rights, endpoint)
        named = f"{id} {self._services.cluster.incarnation}".encode()
        token = self._services.sealer.seal(named, _context(endpoint, principal))
        self._sealed[token] = messages
        try:
            yield token, messages
        finally:
            del self._open[id], self._sealed[token]
            messages.drop()

    def say_here(self, token: str, principal: Principal, body: bytes, rights: Rights, endpoint: str) -> bool:
        """The same where the channel is in this process under the name that its client has, so that nothing need be
        unsealed; False: it was not passed on."""
        here = self._sealed.get(token)
        known = here is not None and here.principal == principal and here.endpoint == endpoint
        return known and here is not None and here.put(body, rights)

    async def say(
        self, token: str, principal: Principal, body: bytes, rights: Rights = NO_RIGHTS, endpoint: str = ""
    ) -> int:
        """Passes on a message of a client, or waits a while until it can be; an HTTP status. One of another principal,
        or at another endpoint, looks like one that is not there."""
        if self.say_here(token, principal, body, rights, endpoint):
            return ACCEPTED
        named = self._services.sealer.unseal(token, _context(endpoint, principal))
        if named is None:
            return UNKNOWN
        id, _, incarnation = named.decode().partition(" ")
        if id in self._open or incarnation == self._services.cluster.incarnation:
            there = self._open.get(id)
            if there is None:
                return UNKNOWN
            return await there.put_within(self._services.limits.admission, body, rights)
        to, said = self._renamed.get(incarnation, incarnation), (principal, lt.Said(id, body), rights)
        status = await self._mail(to, said)
        return status if status is not None else await self._find(incarnation, said)

    def _put(self, id: str, body: bytes, rights: Rights) -> int:
        messages = self._open.get(id)
        if messages is None:
            return UNKNOWN
        return ACCEPTED if messages.put(body, rights) else BUSY

    async def _find(self, former: Incarnation, said: _Saying) -> int:
        """Nobody takes letters under this name: whoever had it may have another one now, or will in a moment."""
        if await self._ask(lambda done: self._services.cluster.alive(former, done)) is not False:
            return BUSY
        replicas: list[Replica] | None = await self._ask(self._services.cluster.replicas)
        if replicas is None:
            return BUSY
        statuses = [UNKNOWN]
        for replica in replicas:
            if replica.alive and replica.incarnation != self._services.cluster.incarnation:
                status = await self._mail(replica.incarnation, said)
                if status == ACCEPTED:
                    self._remember(former, replica.incarnation)
                    return ACCEPTED
                statuses.append(status or UNKNOWN)
        return max(statuses)

    def _remember(self, former: Incarnation, now: Incarnation) -> None:
        if len(self._renamed) >= RENAMED:
            self._renamed.clear()
        self._renamed[former] = now

    async def _mail(self, to: Incarnation, said: _Saying) -> int | None:
        """None: nobody lives there."""
        cluster, mid = self._services.cluster, self._next
        self._next -= 1
        mailed = self._asked[mid] = _Mailed()
        principal, body, rights = said
        try:
            letter = lt.encode(Letter("", (cluster.incarnation, mid), body, principal, "", rights=rights))
            cluster.post(to, letter, mailed.posted)
            with trio.move_on_after(self._services.limits.admission):
                await mailed.settled.wait()
            if not mailed.settled.is_set() and (entry := mailed.entry) is not None:
                if await self._ask(lambda done: cluster.withdraw(to, entry, done)) is True:
                    return BUSY
                with trio.move_on_after(self._services.limits.admission):  # it was taken: the answer is on its way
                    await mailed.settled.wait()
            return mailed.status
        finally:
            del self._asked[mid]

    async def _ask(self, ask: Callable[[Done], None]) -> Any:
        """What the cluster answers; None if it can't."""
        answered, answers = trio.Event(), []

        def done(outcome: object) -> None:
            answers.append(None if isinstance(outcome, Failed) else outcome)
            answered.set()

        ask(done)
        with trio.move_on_after(self._services.limits.admission):
            await answered.wait()
        return answers[0] if answers else None

    def take(self, letter: Letter) -> None:
        """A letter about a channel, from another replica."""
        to, mid = letter.reply
        body = letter.body
        assert isinstance(body, lt.OfChannel)
        match body:
            case lt.Said(id, message):
                status, cluster = self._put(id, message, letter.rights), self._services.cluster
                answer = Letter("", (cluster.incarnation, mid), lt.Heard(status), letter.principal, "")
                cluster.post(to, lt.encode(answer), lambda outcome: None)
            case lt.Heard(status):
                if (mailed := self._asked.get(mid)) is not None:
                    mailed.settle(status)


class _Mailed:
    """A message in a letter. `status` is that of its HTTP request, as far as anybody knows; None: nobody is there."""

    def __init__(self) -> None:
        self.status: int | None = UNSURE
        self.entry: str | None = None
        self.settled = trio.Event()

    def posted(self, outcome: object) -> None:
        """Of the letter."""
        if not isinstance(outcome, Failed):
            self.entry = str(outcome)
        elif outcome.reason is not Refused.AWAY:
            self.settle(None if outcome.reason is Refused.DEAD else BUSY)

    def settle(self, status: int | None) -> None:
        """It is known."""
        self.status = status
        self.settled.set()


def counted(body: bytes) -> int:
    """The bytes of a message that count against what all may take together: none of a small one."""
    return len(body) if len(body) > LARGE else 0


def _context(endpoint: str, principal: Principal) -> bytes:
    whose = (b"-" if principal.anonymous else b"+") + principal.name.encode()
    return CONTEXT + (b"%d:%b" % (len(endpoint.encode()), endpoint.encode()) if endpoint else b"") + whose
