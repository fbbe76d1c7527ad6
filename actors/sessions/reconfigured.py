"""A session under another configuration: what it was shown may be no more, or not all, or under other names.

Its record names the configuration (`Table.digest`), so that a session which was not in memory when the table was
replaced, or which comes to a process that is configured otherwise, is told when it is rebuilt.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from actors.fronts.aggregate import Aggregate
from actors.links.link_messages import Leave, LinkDown, LinkOutcome
from actors.protocol import errors
from actors.protocol.table import Table
from actors.streams.recorder import handle

if TYPE_CHECKING:
    from actors.sessions.session import SessionActor


def named(table: Table) -> dict[str, bytes]:
    """The field of the record that names the configuration."""
    return {"table": table.digest.encode()}


def reconfigured(session: "SessionActor", before: Table) -> None:
    """The table was replaced while the session lived."""
    front = session.front
    if isinstance(front, Aggregate):
        front.reconfigured(before)
        for backend in [b for b in front.links if b not in front.backends and b in front.table.backends]:
            _leave(front, backend)  # a link to a server that is configured nowhere ends by itself
        session.save({**named(session.services.table.value)})


def _leave(front: Aggregate, backend: str) -> None:
    """The endpoint has this server no more: its connection would wait for nothing."""
    link, me = front.links.pop(backend), front.host.ctx
    message = f"server {backend!r} is no longer part of this endpoint"
    error = errors.internal(message, reason="unconfigured", executed="unknown", backend=backend).raw
    for call in [call for call, runs_at in front.calls.items() if runs_at == backend]:
        front.outcome(LinkOutcome(backend, call, False, error))
    me.demonitor(link)
    link.reply(Leave(me.ref))
    front.down(LinkDown(link, backend, message, error))


def recorded_under(session: "SessionActor", fields: Mapping[str, bytes]) -> None:
    """The session was rebuilt from a record with these fields."""
    table = session.services.table.value
    if fields.get("table") == table.digest.encode() or not isinstance(session.front, Aggregate):
        return
    key, endpoint = session.identity.key, session.identity.endpoint
    session.services.log.info("session_reconfigured", session=handle(key), endpoint=endpoint)
    session.front.announce_all()
    session.save({**named(table)})
