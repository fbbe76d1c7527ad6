"""Who hears what one upstream connection says unasked, and their bounded backlog; and what one session is subscribed
to.

Nobody can make a backend be silent, so everything here is bounded: progress and logs are dropped when a mailbox is half
full, what says that something has changed is kept once for each thing that changed, and told later.

A *shared* connection belongs to several sessions. What can't be said to belong to one of them goes to nobody: logs
never, an update to those who subscribed, changes of lists to all.
"""

from collections.abc import Callable

from msgspec import Raw
from msgspec.structs import replace

from actors.protocol import errors
from actors.protocol.filter import FLAGS, URI_BYTES, URIS_BYTES, URIS_MAX, located
from actors.protocol.methods import SUBSCRIBE, UNSUBSCRIBE, UPDATED
from actors.runtime import EMPTY_TABLE, Ref, put
from actors.upstreams.messages import Call, UpstreamNotification

CHATTER = ("notifications/progress", "notifications/message")
"""What may be lost."""
MAX_PENDING_REPLIES = 256
"""Notifications kept for mailboxes that were full."""
PENDING_REPLIES_BYTES = 4096
"""The largest of them: that something has changed is said in less."""
REPLIES_AGAIN = 0.1
"""Seconds after which what found no room in a mailbox is offered again."""


class Subscribers:
    """The members of one connection, in the order in which they came. `dropped` counts what is told to nobody;
    `later` sees to it that `settle` is called after `REPLIES_AGAIN`, since somebody had no room."""

    __slots__ = (
        "_dropped",
        "_interests",
        "_later",
        "_pending_replies",
        "_settles",
        "_subscribing",
        "members",
        "shared",
    )

    def __init__(self, shared: bool, dropped: Callable[[str], object], later: Callable[[], object]) -> None:
        self.shared = shared
        self.members: dict[Ref, None] = {}
        self._dropped = dropped
        self._later = later
        self._interests: dict[str, set[Ref]] = EMPTY_TABLE
        self._subscribing: dict[tuple[Ref, int], str] = EMPTY_TABLE
        self._pending_replies: dict[tuple[Ref, str, bytes], UpstreamNotification] = EMPTY_TABLE
        self._settles = False
        """`settle` was asked for."""

    @property
    def interested(self) -> bool:
        """Whether anybody is subscribed to something over a connection that several use."""
        return bool(self._interests)

    def only(self) -> Ref | None:
        """The one member, if there is but one."""
        return next(iter(self.members)) if len(self.members) == 1 else None

    def leave(self, ref: Ref) -> list[str]:
        """A member is gone; the URIs that nobody is interested in any more."""
        self.members.pop(ref, None)
        self._pending_replies = {key: told for key, told in self._pending_replies.items() if key[0] is not ref}
        return [uri for uri in list(self._interests) if self.lose_interest(ref, uri)]

    # Subscriptions of a shared connection

    def settles(self, key: tuple[Ref, int], call: Call) -> bool:
        """Whether a call needs not be made: the first one to subscribe and the last one to unsubscribe speak for
        all."""
        uri = located(call.params) if self.shared and call.method in (SUBSCRIBE, UNSUBSCRIBE) else None
        if uri is None:
            return False
        if call.method == SUBSCRIBE:
            self.take_interest(call.caller, uri)
            self._subscribing = put(self._subscribing, key, uri)
            return False
        others = self.wanted_by_others(call.caller, uri)
        self.lose_interest(call.caller, uri)
        return others

    def subscribed(self, key: tuple[Ref, int], ok: bool) -> None:
        """A call has its outcome; a subscription may have come to nothing."""
        uri = self._subscribing.pop(key, None)
        if uri is not None and not ok:
            self.lose_interest(key[0], uri)

    def take_interest(self, ref: Ref, uri: str) -> None:
        """Notes that a member has subscribed to this URI."""
        interested = self._interests.get(uri)
        if interested is None:
            self._interests = put(self._interests, uri, {ref})
        else:
            interested.add(ref)

    def lose_interest(self, ref: Ref, uri: str) -> bool:
        """Notes that a member has unsubscribed; True if it was the last one to be interested."""
        interested = self._interests.get(uri)
        if interested is None or ref not in interested:
            return False
        interested.discard(ref)
        if not interested:
            del self._interests[uri]
        return not interested

    def wanted_by_others(self, ref: Ref, uri: str) -> bool:
        """Whether somebody else subscribed to this too."""
        return bool(self._interests.get(uri, set()) - {ref})

    # Telling

    def tell(self, told: UpstreamNotification, to: Ref | None) -> None:
        """Tells the one it belongs to, or all whom it concerns."""
        if to is not None and not (self.shared and told.method == "notifications/message"):
            self._offer(to, told)
            return
        for ref in self._concerned(told):
            self._offer(ref, told)

    def _concerned(self, told: UpstreamNotification) -> list[Ref]:
        if not self.shared or told.method in FLAGS:
            return list(self.members)
        if told.method == UPDATED:
            # It may name a part of what was subscribed to (2025-11-25 server/resources, "Subscriptions").
            uri = located(told.params) or ""
            return [ref for ref in self.members if self._interested(ref, uri)]
        self._dropped("shared_unattributed")
        return []

    def _interested(self, ref: Ref, uri: str) -> bool:
        return any(ref in interested and uri.startswith(of) for of, interested in self._interests.items())

    def _offer(self, ref: Ref, told: UpstreamNotification) -> None:
        if not ref.crowded and ref.cast(told):
            return
        key = (ref, told.method, bytes(told.params))
        full = len(key[2]) > PENDING_REPLIES_BYTES or (
            key not in self._pending_replies and len(self._pending_replies) >= MAX_PENDING_REPLIES
        )
        if told.method in CHATTER or full:
            self._dropped("notification_refused")
        elif ref.alive:
            told = replace(told, params=Raw(key[2]), place=None)  # the frame it came in is let go
            self._pending_replies = put(self._pending_replies, key, told)
            if not self._settles:
                self._settles = True
                self._later()

    @property
    def backlog(self) -> int:
        """Notifications that wait for room in a mailbox."""
        return len(self._pending_replies)

    def settle(self) -> None:
        """Tells what had no room before."""
        self._settles = False
        pending_replies, self._pending_replies = self._pending_replies, EMPTY_TABLE
        for (ref, _, _), told in pending_replies.items():
            self._offer(ref, told)


class Subscriptions:
    """What one session is subscribed to, in the client's words; it is in the record, so a rebuilt session has it too.
    Changes with the outcomes of calls; `changed` is called when it has."""

    __slots__ = ("_changed", "_noted", "uris")

    def __init__(self, changed: Callable[[tuple[str, ...]], object]) -> None:
        self.uris: tuple[str, ...] = ()
        self._changed = changed
        self._noted: dict[int, tuple[str, bool]] = EMPTY_TABLE

    @property
    def pending(self) -> int:
        """Calls whose outcome will change it."""
        return len(self._noted)

    def note(self, call: int, method: str, params: Raw) -> errors.ProtocolError | None:
        """Remembers what a call will change if it succeeds; an error if that would be too much."""
        uri = located(params) if method in (SUBSCRIBE, UNSUBSCRIBE) else None
        if uri is None:
            return None
        size = len(uri.encode())
        if method == SUBSCRIBE and size > URI_BYTES:
            return errors.invalid_params(f"a URI to subscribe to may have {URI_BYTES} bytes")
        if method == SUBSCRIBE and self._full(size):
            return errors.internal("too many subscriptions in one session", reason="too_many", executed="no")
        self._noted = put(self._noted, call, (uri, method == SUBSCRIBE))
        return None

    def _full(self, size: int) -> bool:
        """Whether a URI of this size is one too many."""
        held = (*self.uris, *(uri for uri, _ in self._noted.values()))
        return len(held) >= URIS_MAX or sum(len(u.encode()) for u in held) + size > URIS_BYTES

    def forget(self, call: int) -> None:
        """It will not be known what became of the call."""
        self._noted.pop(call, None)

    def settle(self, call: int, ok: bool) -> None:
        """The outcome of a call, noted or not."""
        noted = self._noted.pop(call, None)
        if noted is None or not ok:
            return
        uri, wanted = noted
        rest = tuple(u for u in self.uris if u != uri)
        self.uris = (*rest, uri) if wanted else rest
        self._changed(self.uris)
