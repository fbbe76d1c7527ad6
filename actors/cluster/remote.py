"""What is held instead of a session's address when another process owns the session: calls go there by mail."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from actors.cluster.letters import SessionAsk
from actors.named import NamedRef
from actors.ports import Principal, SessionKey
from actors.runtime import Reply


class Send(Struct, frozen=True):
    """A message for a session, to the mailer; what becomes of it is that of `Ref.call`. The reply gets an Answer, a
    Streaming or a Follower if the session is here by now, a MailFeed, or fails with Refusal for what an Answer says."""

    key: SessionKey
    principal: Principal
    endpoint: str
    make: Callable[[Reply], SessionAsk]
    reply: Reply


class RemoteSession:
    """A session that another process owns, as far as is known here."""

    __slots__ = ("_mailer", "endpoint", "key", "principal")

    alive = True
    """As far as is known here."""

    def __init__(self, mailer: NamedRef, key: SessionKey, principal: Principal, endpoint: str) -> None:
        self._mailer = mailer
        self.key = key
        self.principal = principal
        self.endpoint = endpoint

    async def call(self, make: Callable[[Reply], SessionAsk], admission: float) -> Any:
        """As `Ref.call`; `Refusal` for what the session's owner, or its record, says no to."""
        return await self._mailer.call(
            lambda reply: Send(self.key, self.principal, self.endpoint, make, reply), admission
        )
