"""Fetches a whole list from one backend, page after page."""

from collections.abc import Callable

import msgspec
from msgspec import Raw

from actors.protocol import payload as json
from actors.protocol.errors import BROKEN, Malformed
from actors.protocol.messages import EMPTY
from actors.protocol.steady import Items

MAX_PAGES = 100
"""A backend that never ends its list is cut off here."""
MAX_ITEMS = 10_000
"""The same, by items."""
MAX_BYTES = 16 * 1024 * 1024
"""The same, by their size."""


class _Cursor(msgspec.Struct):
    nextCursor: str | None = None  # the wire's name  # noqa: N815


Page = Callable[[bool, Raw], None]
"""Gets the outcome of the request for one page."""


class Paging:
    """One fetch. `ask` sends a request, and sees to it that its outcome is handed over; `done` gets the items that came
    (None: not even one page), and what cut them short (EMPTY: they are all)."""

    def __init__(
        self, member: str, ask: Callable[[Raw, Page], None], done: Callable[[Items | None, Raw], None]
    ) -> None:
        self._member = member
        self._ask = ask
        self._done = done
        self._items: list[Raw] = []
        self._pages = 0
        self._bytes = 0
        self._cursors: set[str] = set()

    def start(self) -> None:
        """Asks for the first page."""
        self._ask(EMPTY, self.outcome)

    def outcome(self, ok: bool, payload: Raw) -> None:
        """Takes a page, or an error instead of it."""
        if not ok:
            self._done(tuple(self._items) if self._pages else None, payload)
            return
        try:
            members = json.members(payload)
            items = json.elements(members.get(self._member, Raw(b"[]")))
            cursor = msgspec.json.decode(payload, type=_Cursor).nextCursor
        except (Malformed, *BROKEN):
            self._done(tuple(self._items) if self._pages else None, payload)
            return
        self._pages += 1
        self._items += [Raw(bytes(item)) for item in items]
        self._bytes += sum(map(len, items))
        # An empty cursor is a cursor (2025-11-25 server/utilities/pagination); one seen before is a loop.
        more = cursor is not None and cursor not in self._cursors
        full = self._pages >= MAX_PAGES or len(self._items) >= MAX_ITEMS or self._bytes >= MAX_BYTES
        if not more or full:
            self._done(tuple(self._items[:MAX_ITEMS]), EMPTY)
            return
        self._cursors.add(cursor or "")
        self._ask(json.dumps({"cursor": cursor}), self.outcome)
