"""What transports are given: the credentials of one connection, over the source of its tokens."""

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from gateway.oauth.challenges import bearer
from gateway.oauth.sources import RefusedError, Source

BEARER: Final = "Authorization: Bearer {}\r\n"

Refusal = TypeVar("Refusal")


class Authorizer(Generic[Refusal]):
    """See `gateway.backends.credentials.Credentials`. `refusal` makes what the transport is told where there are no
    other credentials; `start` runs what brings the source up to date, in a task of the gateway's."""

    def __init__(
        self,
        source: Source,
        refusal: Callable[[str, str], Refusal],
        start: Callable[[Callable[[], Awaitable[object]]], object],
        line: str = BEARER,
    ) -> None:
        self._source = source
        self._refusal = refusal
        self._start = start
        self._line = line
        self._waiting: list[Callable[[], object]] = []
        self._loading = False

    @property
    def usable(self) -> bool:
        """Whether what `lines` has may be sent."""
        return self._source.fresh

    def when_usable(self, again: Callable[[], object]) -> bool:
        """The same; if not, it is brought up to date, and `again` called then."""
        if self._source.fresh:
            return True
        if again not in self._waiting:
            self._waiting.append(again)
        if not self._loading:
            self._loading = True
            self._start(self._load)
        return False

    async def _load(self) -> None:
        try:
            await self._source.load()
        finally:
            self._loading = False
            waiting, self._waiting = self._waiting, []
            for again in waiting:
                again()

    def lines(self) -> bytes:
        """The header with the token."""
        token = self._source.token
        return self._line.format(token).encode("latin-1") if token is not None else b""

    async def prepare(self) -> None:
        """Brings the source up to date."""
        if not self._source.fresh:
            await self._source.load()

    def concern(self, status: int, challenge: str) -> bool:
        """Any 401; and a 403 that says that rights are missing (RFC 6750, section 3.1)."""
        if status == 401:
            return True
        found = bearer([challenge])
        return found is not None and found.parameters.get("error") == "insufficient_scope"

    async def refused(self, status: int, challenge: str, sent: bytes) -> Refusal | None:
        """Has the source see to other tokens."""
        before, _, after = self._line.partition("{}")
        token = sent.decode("latin-1").removeprefix(before).removesuffix(after) if sent else None
        try:
            await self._source.refused(bearer([challenge]), token, scope=status == 403)
        except RefusedError as error:
            return self._refusal(error.reason, str(error))
        return None
