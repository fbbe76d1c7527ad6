"""A session under another configuration: what it was shown may be no more, or not all, or under other names.

Its record names the configuration (`Table.digest`), so that a session which was not in memory when the table was
replaced, or which comes to a process that is configured otherwise, is told when it is rebuilt.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from actors.aggregate import Aggregate
from actors.protocol.table import Table
from actors.recorder import handle

if TYPE_CHECKING:
    from actors.session import SessionActor


def named(table: Table) -> dict[str, bytes]:
    """The field of the record that names the configuration."""
    return {"table": table.digest.encode()}


def reconfigured(session: "SessionActor", before: Table) -> None:
    """The table was replaced while the session lived."""
    if isinstance(session.front, Aggregate):
        session.front.reconfigured(before)
        session.save({**named(session.services.table.value)})


def recorded_under(session: "SessionActor", fields: Mapping[str, bytes]) -> None:
    """The session was rebuilt from a record with these fields."""
    table = session.services.table.value
    if fields.get("table") == table.digest.encode() or not isinstance(session.front, Aggregate):
        return
    key, endpoint = session.identity.key, session.identity.endpoint
    session.services.log.info("session_reconfigured", session=handle(key), endpoint=endpoint)
    session.front.announce_all()
    session.save({**named(table)})
