"""The letters that one side of a link posts: in order, one at a time, each with all that was said meanwhile."""

from collections import deque
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from actors.cluster.letters import FromPool, Letter, ToPool
from actors.cluster.letters import encode as encode_letter
from actors.pools import messages as pm
from actors.pools.letters import Said, encode
from actors.ports import Failed, Incarnation, Principal, Refused, SessionKey, ignore
from actors.runtime import Context
from actors.services import Services

AGAIN: Final = 0.5
"""Seconds before a letter that could not be posted is posted again."""
WITHIN: Final = 10.0
"""Seconds for which that goes on."""
BATCH: Final = 64 * 1024
"""Bytes after which a letter takes no more messages."""


class Link(Struct, frozen=True):
    """One link: its number is the holder's, and `key` the record of the pool."""

    key: SessionKey
    principal: Principal
    me: Incarnation
    peer: Incarnation
    number: int


class Sent(Struct, frozen=True):
    """A letter. `entry`: where it is in the inbox, once it was posted, if it is surely there but once: to take one of
    two back would tell nothing of the other."""

    number: int
    said: tuple[Said, ...]
    entry: str | None = None


class Outgoing:
    """One side of a link. The actor hands over Posted and PostDue."""

    def __init__(self, link: Link, ctx: Context, services: Services, body: type[ToPool | FromPool]) -> None:
        self.seen = 0
        """The number of the last letter of the peer that was read here."""
        self.unread: deque[Sent] = deque()
        """Posted, and not known to have been read."""
        self.under_way: Sent | None = None
        self.posting = False
        """It is not known yet what became of it."""
        self.absent = True
        """No attempt to post it can have put it into the inbox, but for one that is not over."""
        self.stuck: float | None = None
        """Since when no letter could be posted."""
        self.reason: Refused | None = None
        """Why."""
        self.waiting: deque[Said] = deque()
        self._link = link
        self._ctx = ctx
        self._cluster = services.cluster
        self._telemetry = services.telemetry
        self._body = body
        self._number = 0

    def say(self, said: Said) -> None:
        """With the next letter."""
        self.waiting.append(said)
        self._next()

    def read_up_to(self, number: int) -> None:
        """The peer has read our letters up to this one."""
        while self.unread and self.unread[0].number <= number:
            self.unread.popleft()

    @property
    def settled(self) -> bool:
        """Whether all that was said has been posted."""
        return self.under_way is None and not self.waiting

    def _next(self) -> None:
        if self.under_way is not None or not self.waiting:
            return
        said: list[Said] = []
        size = 0
        while self.waiting and (not said or size < BATCH):
            message = self.waiting.popleft()
            size += len(getattr(message, "params", b"")) + len(getattr(message, "payload", b""))
            said.append(message)
        self._number += 1
        self.under_way, self.absent = Sent(self._number, tuple(said)), True
        self._post(self.under_way)

    def last(self, said: Said) -> None:
        """Alone, and without waiting for what becomes of the letter before: the link ends. Should that one be missing,
        the peer takes the link for lost, which comes to the same."""
        self._number += 1
        self._cluster.post(self._link.peer, self._letter(Sent(self._number, (said,))), ignore)

    def again(self) -> None:
        """Once more what could not be posted. (Had it been posted after all, it is read once.)"""
        if self.under_way is not None and not self.posting:
            self._post(self.under_way)

    def _post(self, sent: Sent) -> None:
        number, ref = self._link.number, self._ctx.ref
        self.posting = True
        self._cluster.post(self._link.peer, self._letter(sent), lambda out: ref.reply(pm.Posted(number, out)))

    def _letter(self, sent: Sent) -> bytes:
        link, body = self._link, self._body(sent.number, self.seen, encode(sent.said))
        letter = Letter(link.key, (link.me, link.number), body, link.principal, "")
        self._telemetry.count("stagedoor_letters_sent_total", (letter.kind,))
        return encode_letter(letter)

    def posted(self, outcome: object) -> bool:
        """What became of the letter under way; False: nobody will ever read it, or the next."""
        sent, self.posting = self.under_way, False
        if sent is None:
            return True
        if isinstance(outcome, Failed):
            now = self._ctx.now()
            self.absent = self.absent and outcome.reason in (Refused.DEAD, Refused.INBOX_FULL)
            self.reason, self.stuck = outcome.reason, now if self.stuck is None else self.stuck
            if outcome.reason is Refused.DEAD or now - self.stuck >= WITHIN:
                return False
            self._ctx.set_timer("post", AGAIN, pm.PostDue())
            return True
        self.under_way, self.stuck, self.reason = None, None, None
        self.unread.append(replace(sent, entry=str(outcome) if self.absent else None))
        self._next()
        return True
