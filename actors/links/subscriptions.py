"""What one session is subscribed to, in the client's words; it is in the record, so a rebuilt session has it too."""

from collections.abc import Callable

from msgspec import Raw

from actors.links.audience import located
from actors.protocol import errors

SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
SUBSCRIPTIONS_MAX = 1024
"""Resources that one session may be subscribed to."""
SUBSCRIPTIONS_BYTES = 256 * 1024
"""Of their URIs in all: they are in the session's record."""
URI_BYTES = 8 * 1024
"""Of one of them."""


class Subscriptions:
    """Changes with the outcomes of calls; `changed` is called when it has."""

    def __init__(self, changed: Callable[[tuple[str, ...]], object]) -> None:
        self.uris: tuple[str, ...] = ()
        self._changed = changed
        self._noted: dict[int, tuple[str, bool]] = {}

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
        self._noted[call] = (uri, method == SUBSCRIBE)
        return None

    def _full(self, size: int) -> bool:
        """Whether a URI of this size is one too many."""
        held = (*self.uris, *(uri for uri, _ in self._noted.values()))
        return len(held) >= SUBSCRIPTIONS_MAX or sum(len(u.encode()) for u in held) + size > SUBSCRIPTIONS_BYTES

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
