"""Answers that may be given again: discover, the lists and resources/read, as long as their `ttlMs` says
(2026-07-28, server/utilities/caching).

What is private is kept for one principal, by the name under which the caller is known: it must be another one for
other granted scopes. What is public is kept for all. No clock: the time comes with each server request.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Raw

from actors.machines.upstream.modern_events import Caller
from actors.protocol import errors
from actors.protocol import filter as filters
from actors.protocol import payload as json
from actors.protocol.methods import LIST_CHANGED, UPDATED
from actors.protocol.outcomes import CACHEABLE, ttl

ENTRIES: Final = 4096
"""Answers kept; the one that was used longest ago goes first."""
TOTAL_BYTES: Final = 32 * 1024 * 1024
"""Of all of them."""
ENTRY_BYTES: Final = 4 * 1024 * 1024
"""Of one; a larger one is not kept."""
LONGEST: Final = 24 * 3600.0
"""Seconds for which an answer is fresh, whatever its server says."""
STALE: Final = 600.0
"""Seconds after which an answer that is not fresh any more is no help even if its server is away."""

CHANGES: Final = {
    LIST_CHANGED["tools"]: ("tools/list",),
    LIST_CHANGED["prompts"]: ("prompts/list",),
    LIST_CHANGED["resources"]: ("resources/list", "resources/templates/list"),
}
"""Notification → the lists that are outdated by it."""

_RESULT_AFFECTING: Final = {"resources/read": "uri"}
_PAGED: Final = "cursor"
_PUBLIC: Final = ""


class _Key(NamedTuple):
    method: str
    what: str | None
    """The URI or the cursor."""
    declared: bytes
    """What the client declared: a server may show it other things for it."""
    principal: str
    """Empty: public."""


class _Entry(NamedTuple):
    payload: Raw
    fresh_until: float


class Cache:
    """The answers of one backend."""

    def __init__(self) -> None:
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of all answers that are kept."""
        return self._bytes

    def get(self, method: str, params: Raw, client: Caller, now: float) -> Raw | None:
        """A fresh answer, with as much of its `ttlMs` as is left."""
        found = self._find(method, params, client)
        if found is None or found.fresh_until <= now:
            return None
        return json.replace_members(found.payload, {"ttlMs": json.dumps(int((found.fresh_until - now) * 1000))})

    def stale(self, method: str, params: Raw, client: Caller, now: float) -> Raw | None:
        """An answer that is better than none, as its server can't be reached; it says that it is not fresh."""
        found = self._find(method, params, client)
        if found is None or found.fresh_until + STALE <= now:
            return None
        return json.replace_members(found.payload, {"ttlMs": Raw(b"0")})

    def _find(self, method: str, params: Raw, client: Caller) -> _Entry | None:
        for key in _keys(method, params, client):
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return found
        return None

    def put(self, method: str, params: Raw, client: Caller, payload: Raw, now: float) -> None:
        """Keeps a complete answer to a request that was no retry, if it may be kept at all."""
        keys = _keys(method, params, client)
        if not keys:
            return
        try:
            present = json.members(payload)
        except errors.Malformed:
            return
        milliseconds = ttl(present) or 0
        public = json.text_or_none(present.get("cacheScope")) == "public"
        if method not in _RESULT_AFFECTING:
            public = self._agrees(keys[0], public) and public
        for key in keys:
            self._drop(key)
        if milliseconds == 0 or len(payload) > ENTRY_BYTES or (not public and not client.principal):
            return
        key = keys[0] if public else keys[1]
        fresh_until = now + min(milliseconds, LONGEST * 1000) / 1000  # an integer may be too large for a float
        self._entries[key] = _Entry(Raw(bytes(payload)), fresh_until)
        self._bytes += len(payload)
        while len(self._entries) > ENTRIES or self._bytes > TOTAL_BYTES:
            self._drop(next(iter(self._entries)))

    def _agrees(self, page: _Key, public: bool) -> bool:
        """Whether a page may be public: all pages of a listing have one scope, that of the first one; and a page that
        turns out to be private takes the others back."""
        first = page._replace(what=None)
        if page != first and not public and first in self._entries:
            self._forget(lambda key: key.method == page.method and key.principal == _PUBLIC)
        return page == first or first in self._entries

    def changed(self, notification: str, params: Raw) -> bool:
        """A notification of the server: what it outdates is gone at once. An update of a resource may name a part of
        it, or what it is a part of. False for a notification that outdates nothing."""
        lists = CHANGES.get(notification)
        if lists is not None:
            self._forget(lambda key: key.method in lists)
        elif notification == UPDATED:
            uri = filters.located(params) or ""
            self._forget(lambda key: key.method == "resources/read" and _related(key.what or "", uri))
        return lists is not None or notification == UPDATED

    def bad_cursor(self, method: str) -> None:
        """A page was refused: the listing begins anew."""
        self._forget(lambda key: key.method == method)

    def clear(self) -> None:
        """Everything is outdated: nobody listened."""
        self._entries.clear()
        self._bytes = 0

    def _forget(self, which: Callable[[_Key], bool]) -> None:
        for key in [key for key in self._entries if which(key)]:
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry.payload)


def _related(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _keys(method: str, params: Raw, client: Caller) -> tuple[_Key, ...]:
    """Under which a request's answer is kept: for all, and for its principal. None if anything but the URI or the
    cursor affects its result."""
    if method not in CACHEABLE:
        return ()
    name = _RESULT_AFFECTING.get(method, _PAGED)
    try:
        present = json.members(params)
    except errors.Malformed:
        return ()
    what = json.text_or_none(present[name]) if name in present else None
    if present.keys() - {name, "_meta"} or (what is None and (name in present or name != _PAGED)):
        return ()
    key = _Key(method, what, bytes(client.capabilities), _PUBLIC)
    return key, key._replace(principal=client.principal)
