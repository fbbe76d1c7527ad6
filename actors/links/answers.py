"""Answers of a backend without sessions that its link keeps: given again while they are fresh, and a while longer if
the backend can't be reached."""

from typing import NamedTuple

from msgspec import Raw

from actors.links.link_messages import Call
from actors.protocol import errors, payload, translate
from actors.protocol import link_events as ev
from actors.protocol.link_events import CallKey
from actors.protocol.modern.cache import Cache
from actors.protocol.modern.caller import Caller
from actors.protocol.modern.link_events import Keep
from actors.protocol.modern.outcomes import CACHEABLE, code_of
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN


class _Asked(NamedTuple):
    method: str
    params: Raw
    client: Caller


class Answers:
    """Of one link."""

    def __init__(self) -> None:
        self._cache = Cache()
        self._asked: dict[CallKey, _Asked] = {}
        self._overtaken: set[CallKey] = set()
        """Those that may be of before a change that was announced since."""

    def fresh(self, call: Call, client: Caller, now: float) -> Raw | None:
        """The answer to this call, in the form that its client gets, if it is known."""
        if call.method not in CACHEABLE:
            return None
        return _formed(call.method, self._cache.get(call.method, call.params, client, now), client)

    def asked(self, key: CallKey, call: Call, client: Caller) -> None:
        """The call goes to the backend."""
        if call.method in CACHEABLE:
            self._asked[key] = _Asked(call.method, call.params, client)

    def keep(self, keep: Keep, now: float) -> None:
        """An answer that may be kept, if its backend allows it."""
        if keep.call not in self._overtaken:
            self._cache.put(keep.method, keep.params, keep.client, keep.payload, now)

    def outcome(self, finish: ev.Finish, now: float) -> tuple[bool, Raw]:
        """The outcome of a call, or what is known instead of an error that says that the backend can't be had."""
        asked = self._asked.pop(finish.call, None)
        self._overtaken.discard(finish.call)
        if finish.ok or asked is None:
            return finish.ok, finish.payload
        code = code_of(finish.payload)
        if code == errors.INVALID_PARAMS and payload.mentions(asked.params, b"cursor"):
            self._cache.bad_cursor(asked.method)
        if finish.theirs or code != errors.INTERNAL:
            return False, finish.payload
        stale = _formed(asked.method, self._cache.stale(*asked, now), asked.client)
        return (False, finish.payload) if stale is None else (True, stale)

    def forget(self, key: CallKey) -> None:
        """Nobody waits for the outcome."""
        self._asked.pop(key, None)
        self._overtaken.discard(key)

    def changed(self, method: str, params: Raw) -> None:
        """A notification of the backend."""
        if self._cache.changed(method, params):
            self._overtaken |= self._asked.keys()

    def clear(self) -> None:
        """It is another backend."""
        self._overtaken |= self._asked.keys()
        self._cache.clear()


def _formed(method: str, answer: Raw | None, client: Caller) -> Raw | None:
    return (
        translate.result(method, answer, LATEST_HANDSHAKE, MODERN) if answer is not None and client.drives else answer
    )
