"""What transports are given: the credentials of one connection, over the source of its tokens."""

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from actors.ports import NO_RIGHTS, Rights
from gateway.oauth.challenges import bearer
from gateway.oauth.sources import RefusedError, Source

BEARER: Final = "Authorization: Bearer {}\r\n"

Refusal = TypeVar("Refusal")


class Authorizer(Generic[Refusal]):
    """See `gateway.backends.credentials.Credentials`. `source` is that of the tokens for who asks with such rights.
    `refusal` makes what the transport is told where there are no other credentials; `start` runs what brings the source
    up to date, in a task of the gateway's."""

    def __init__(
        self,
        source: Callable[[Rights], Source],
        refusal: Callable[[str, str], Refusal],
        start: Callable[[Callable[[], Awaitable[object]]], object],
        line: str = BEARER,
        bind: Callable[[Callable[[], object]], Callable[[], object]] = lambda lost: lambda: None,
    ) -> None:
        """`bind` has somebody called when the account is another one, until what it returns is."""
        self.bound = bind
        self._source = source
        self._refusal = refusal
        self._start = start
        self._line = line
        self._waiting: dict[Source, list[Callable[[], object]]] = {}
        """Who waits for a source that is brought up to date."""

    def usable(self, rights: Rights = NO_RIGHTS) -> bool:
        """Whether what `lines` has may be sent."""
        return self._source(rights).fresh

    def when_usable(self, again: Callable[[], object], rights: Rights = NO_RIGHTS) -> bool:
        """The same; if not, it is brought up to date, and `again` called then."""
        source = self._source(rights)
        if source.fresh:
            return True
        waiting = self._waiting.get(source)
        if waiting is None:
            waiting = self._waiting[source] = []
            self._start(lambda: self._load(source))
        if again not in waiting:
            waiting.append(again)
        return False

    async def _load(self, source: Source) -> None:
        try:
            await source.load()
        finally:
            for again in self._waiting.pop(source):
                again()

    def lines(self, rights: Rights = NO_RIGHTS) -> bytes:
        """The header with the token."""
        token = self._source(rights).token
        return self._line.format(token).encode("latin-1") if token is not None else b""

    async def prepare(self, rights: Rights = NO_RIGHTS) -> None:
        """Brings the source up to date."""
        source = self._source(rights)
        if not source.fresh:
            await source.load()

    def concern(self, status: int, challenge: str) -> bool:
        """Any 401; and a 403 that says that rights are missing (RFC 6750, section 3.1)."""
        if status == 401:
            return True
        found = bearer([challenge])
        return found is not None and found.parameters.get("error") == "insufficient_scope"

    async def refused(self, status: int, challenge: str, sent: bytes, rights: Rights = NO_RIGHTS) -> Refusal | None:
        """Has the source see to other tokens."""
        before, _, after = self._line.partition("{}")
        token = sent.decode("latin-1").removeprefix(before).removesuffix(after) if sent else None
        try:
            await self._source(rights).refused(bearer([challenge]), token, scope=status == 403)
        except RefusedError as error:
            return self._refusal(error.reason, str(error))
        return None


class KeyVariable(Generic[Refusal]):
    """See `gateway.backends.credentials.ProcessKey`: the key of one user's account."""

    def __init__(
        self,
        source: Source,
        variable: str,
        refusal: Callable[[str, str], Refusal],
        bind: Callable[[Callable[[], object]], Callable[[], object]],
    ) -> None:
        self._source = source
        self._variable = variable
        self._refusal = refusal
        self.bound = bind

    async def take(self) -> tuple[str, str] | Refusal:
        """The variable with the key."""
        await self._source.load()
        if self._source.token is None:
            try:
                await self._source.refused(None, None, scope=False)
            except RefusedError as error:
                return self._refusal(error.reason, str(error))
        assert self._source.token is not None
        return self._variable, self._source.token
