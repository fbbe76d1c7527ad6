"""`Accounts`: what actors are told of users' accounts, and how their users come to the pages."""

from collections.abc import Callable
from typing import Any, Final

from actors.ports import Done, Failed, Invitation, Refused
from actors.protocol.table import BackendSpec, Table
from gateway.oauth.errors import AwayError
from gateway.oauth.flows import Flows
from gateway.oauth.service import UpstreamAuthorization

CLIENT: Final = 100
"""Characters of what a client calls itself."""


class Invitations:
    """See `actors.ports.Accounts`."""

    def __init__(
        self,
        authorization: UpstreamAuthorization[Any],
        flows: Flows,
        table: Callable[[], Table],
        public_url: Callable[[], str],
    ) -> None:
        self._authorization = authorization
        self._flows = flows
        self._table = table
        self._public_url = public_url

    def _spec(self, backend: str) -> BackendSpec | None:
        spec = self._table().backends.get(backend)
        return spec if spec is not None and spec.connectable else None

    def lacks(self, principal: str, backend: str) -> bool:
        """Whether what this principal has there was refused."""
        spec = self._spec(backend)
        account = self._authorization.known(spec, principal) if spec is not None else None
        return account is not None and account.blocked

    def invite(self, principal: str, backend: str, client: str, era: str, done: Done) -> None:
        """Begins a flow, or finds the one that waits."""
        spec = self._spec(backend)
        if spec is None:
            done(Failed(Refused.GONE))
            return

        async def begin() -> None:
            account = self._authorization.account(spec, principal)
            try:
                handle = await self._flows.begin(self._authorization.flow_of(account, client[:CLIENT], era))
            except AwayError:
                done(Failed(Refused.AWAY))
                return
            self._authorization.watch(account)
            page = f"{self._public_url()}/connect"
            done(Invitation(f"{page}/{handle}", handle, page))

        self._authorization.start(begin)

    def wait(self, principal: str, backend: str, seconds: float, done: Done) -> None:
        """Until the account is another one."""
        spec = self._spec(backend)
        if spec is None:
            done(False)
            return

        async def wait() -> None:
            done(await self._authorization.wait(self._authorization.account(spec, principal), seconds))

        self._authorization.start(wait)
