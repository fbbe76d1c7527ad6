"""What an actor of exchanges receives: from edges, and from itself, its connections and its clocks.

What links and the catalogue send is defined where they are.
"""

from collections.abc import Mapping

from msgspec import Struct

from actors.protocol.messages import Notification, Request
from actors.protocol.modern.meta import Envelope
from actors.runtime import Reply


class Begin(Struct, frozen=True):
    """A request without a session, all of whose headers and envelope are in order. The reply gets an Answer or
    Streaming; that its caller is cancelled is the cancellation of the request."""

    request: Request
    envelope: Envelope
    headers: Mapping[str, str]
    reply: Reply


class Inform(Struct, frozen=True):
    """A notification without a session, for the one server behind the endpoint. The reply gets an Answer."""

    notification: Notification
    reply: Reply


class Gone(Struct, frozen=True):
    """The connection of an exchange or a subscription is gone."""

    call: int


class ClockDue(Struct, frozen=True):
    """A response head may have waited long enough, or a request may take too long."""

    call: int


class FlushDue(Struct, frozen=True):
    """Changes have gathered long enough."""

    call: int


class HonourDue(Struct, frozen=True):
    """A subscription has waited long enough for those who have not said what they can do."""

    call: int


class WatchDue(Struct, frozen=True):
    """Time to watch a backend again that could not be watched, or was lost."""

    watch: int


class IdleDue(Struct, frozen=True):
    """Nothing was in hand for a while."""


class DrainDue(Struct, frozen=True):
    """The drain is nearly over."""
