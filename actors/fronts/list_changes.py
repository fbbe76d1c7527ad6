"""When a client is told that a merged list has changed: once for many changes, and only of what is really different
from the list that it has."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from actors.fronts.catalogue_messages import DEBOUNCE, LIST_CHANGED, list_kind
from actors.fronts.endpoint import Endpoint
from actors.fronts.listing import Listing
from actors.protocol import events as ev
from actors.protocol.messages import EMPTY

LONGEST_CHECK = 30.0
"""Seconds between two looks at lists that servers say have changed again and again, and have not."""
SHOWN = "shown"
"""The field of a session's record that says which lists its client has, by their digests."""


@dataclass(frozen=True, slots=True)
class ChangeDue:
    """Time to look whether lists have changed, and to say so."""

    notification: str


class ListChanges:
    """Of one endpoint of one client."""

    def __init__(self, endpoint: Endpoint, listing: Listing) -> None:
        self._endpoint = endpoint
        self._listing = listing
        self._announcing: set[str] = set()
        self._vain: dict[str, tuple[int, float]] = {}
        """By notification: how many looks in a row found nothing new, and when the last one was."""
        self._shown: dict[str, str] = {}
        """By method: the digest of the list that the client was given last, or told of."""
        self._recalled: set[str] = set()
        """Those that it was given in an earlier life of its session."""
        self._looked: dict[str, str] = {}
        """The same of lists that it was not given, but which were looked into for it."""

    def show(self, method: str) -> bool:
        """The client is given this list: what is different from it from here on is news. Whether it is another one than
        was given before."""
        before, digest = self._shown.get(method), self._listing.digest(method)
        self._recalled.discard(method)
        if before == digest:
            return False
        self._shown[method] = digest
        self._endpoint.save({SHOWN: msgspec.json.encode(self._shown)})
        return before is not None

    def withheld(self, method: str) -> None:
        """What came for a request that was cancelled meanwhile, its client was not given: it is told instead."""
        if self._shown.get(method, "") not in ("", self._listing.digest(method)):
            self.announce(LIST_CHANGED[method])

    def gathered(self, method: str) -> None:
        """A list is known as far as it can be. One that was not shown may have been looked up in all the same."""
        if method not in self._shown:
            self._looked.setdefault(method, self._listing.digest(method))

    def recall(self, fields: Mapping[str, bytes]) -> None:
        """The session was rebuilt: the lists that its client has are those of its earlier life. Nobody told it of
        changes meanwhile, and nobody would from here on: it looks, and watches."""
        if SHOWN in fields:
            self._shown = msgspec.json.decode(fields[SHOWN], type=dict[str, str])
            self._recalled = set(self._shown)
            for notification in sorted({LIST_CHANGED[method] for method in self._shown}):
                self.announce(notification)

    def announce_all(self) -> None:
        """Whatever this client was shown may be different."""
        for notification in LIST_CHANGED.values():
            self.announce(notification)

    def announce(self, notification: str) -> None:
        """The lists may be others: if they are, the client is told, once for many changes."""
        if notification not in self._announcing:
            self._announcing.add(notification)
            ctx = self._endpoint.host.ctx
            vain, at = self._vain.get(notification, (0, 0.0))
            if ctx.now() - at > 2 * LONGEST_CHECK:
                vain, self._vain[notification] = 0, (0, at)
            seconds = min(LONGEST_CHECK, DEBOUNCE * 2 ** min(vain, 16))
            ctx.set_timer(("changed", notification), seconds, ChangeDue(notification))

    def due(self, notification: str) -> None:
        """The debounce time is over: what may have changed is looked at."""
        self._announcing.discard(notification)
        methods = [m for m, said in LIST_CHANGED.items() if said == notification and self._had(m) is not None]
        left = set(methods)

        def refreshed(method: str) -> None:
            left.discard(method)
            if not left:
                self._compare(notification, methods)

        if not methods:
            # Nobody knows which lists the client has, perhaps from an earlier session: what is said is passed on.
            self.tell(notification)
        for method in methods:
            self._listing.refresh(method, lambda method=method: refreshed(method))  # type: ignore[misc]

    def _compare(self, notification: str, methods: list[str]) -> None:
        """A client that has these very lists is not told that they have changed."""
        different = [m for m in methods if self._had(m) != self._listing.digest(m) and not self._unsettled(m)]
        vain = 0 if different else self._vain.get(notification, (0, 0.0))[0] + 1
        self._vain[notification] = (vain, self._endpoint.host.ctx.now())
        for method in different:
            self.show(method)
        if different:
            self.tell(notification)
        else:
            self._count(notification, "spared")

    def _unsettled(self, method: str) -> bool:
        """A list of an earlier life is not another one for the lack of a server that has not answered yet."""
        return method in self._recalled and "pending" in self._listing.missing(method).values()

    def _had(self, method: str) -> str | None:
        """The digest of the list that the client has, as far as is known."""
        return self._shown.get(method) or self._looked.get(method)

    def tell(self, notification: str) -> None:
        """Every client of the endpoint hears it."""
        self._count(notification, "sent")
        host = self._endpoint.host
        host.event(ev.CallProgressed("", None, notification, EMPTY, host.ctx.now()))

    def _count(self, notification: str, outcome: str) -> None:
        self._endpoint.services.telemetry.count("stagedoor_list_changed_total", (list_kind(notification), outcome))
