"""The accounts of users at servers, as this process has them in hand: `UserAccount` is the source of one.

What another replica does with an account is seen within `FRESH` seconds, since it is read again before it is used.
Tokens are renewed by one replica at a time; the new pair is written before it is used, and whoever waits for it may go
away: the renewal goes on. Only the word of the authorization server itself ends an account.
"""

import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import trio

from actors.ports import Log
from actors.protocol.table import BackendSpec
from gateway.oauth import grants
from gateway.oauth.challenges import Challenge
from gateway.oauth.discovery import Discovery
from gateway.oauth.errors import AwayError, ClientRefusedError, GrantRefusedError, OAuthError
from gateway.oauth.flows import give_back
from gateway.oauth.grants import Client
from gateway.oauth.sources import AGAIN, WITHIN, RefusedError, client_now, due
from gateway.oauth.trust import trusted_by
from gateway.oauth.vault import Account, AccountKey, Kept, Vault

FRESH: Final = 2.0
"""Seconds for which an account is used as it was read."""
LOCKED: Final = 45.0
"""Seconds for which one replica may be about renewing an account."""
WRITES_WITHIN: Final = 120.0
"""Seconds in which a new pair is written again and again while the store is away. The old one is of no use any more."""
ENDS_WITHIN: Final = 15.0
"""Seconds that a renewal has to come to its end when the gateway ends."""
STEPS: Final = 2
STEPS_WITHIN: Final = 600.0
"""Accounts that may lack the same further rights, in so many seconds, until their user is asked for them no more."""

Start = Callable[[Callable[[], Awaitable[object]]], object]


class UserAccount:
    """See `sources.Source`."""

    def __init__(
        self,
        place: AccountKey,
        spec: BackendSpec,
        discovery: Discovery,
        vault: Vault,
        start: Start,
        wall: Callable[[], float],
        log: Log,
        changed: Callable[[AccountKey], object],
    ) -> None:
        self.place = place
        self.spec = spec
        self._discovery = discovery
        self._vault = vault
        self._start = start
        self._wall = wall
        self._log = log
        self._changed = changed
        self._kept: Kept | None = None
        self._known = False
        self._renewals = 0
        self._read_at = -FRESH
        self._obtained = 0.0
        self._failed_at = -AGAIN
        self._lock = trio.Lock()
        self._renewal: _Renewal | None = None
        self._steps: deque[tuple[float, frozenset[str], str]] = deque(maxlen=32)
        """When which rights were wanted, and the tag of the account that has them not."""
        self.challenge: Challenge | None = None
        """The last one that there were no credentials for."""
        self.wanted: tuple[str, ...] = ()
        """Scopes that the account lacks."""
        self._blocked: str | None = None
        """The tag of the account that the server has refused; "": there was none."""

    @property
    def token(self) -> str | None:
        return self._kept.account.tokens.access if self._kept is not None else None

    @property
    def fresh(self) -> bool:
        if trio.current_time() - self._read_at >= FRESH:
            return False
        kept = self._kept
        waits = trio.current_time() - self._failed_at < AGAIN
        return kept is None or waits or not self._due(kept)

    def _due(self, kept: Kept) -> bool:
        account = kept.account
        return account.tokens.refresh is not None and due(account.tokens, self._obtained, self._wall())

    @property
    def tag(self) -> str:
        """Of the account as it was read last; "": there is none."""
        return self._kept.tag if self._kept is not None else ""

    @property
    def account(self) -> Account | None:
        """As it was read last."""
        return self._kept.account if self._kept is not None else None

    @property
    def connected(self) -> bool:
        """Whether there is an account that the server has not refused."""
        return self._kept is not None and self._kept.tag != self._blocked

    @property
    def blocked(self) -> bool:
        """Whether the server has refused what there is."""
        return self._blocked is not None and self._blocked == self.tag

    async def read(self, *, used: bool = False) -> None:
        """Reads the account anew. Raises AwayError."""
        self._take(await self._read(used=used))

    async def _read(self, *, used: bool = False) -> Kept | None:
        """The account as it stands, nothing older than what a renewal has come to meanwhile: its end and the answer of
        the store are heard in any order."""
        while True:
            before = self._renewals
            kept = await self._vault.read(self.place, used=used)
            if before == self._renewals:
                return kept

    def _take_renewed(self, kept: Kept | None) -> None:
        self._renewals += 1
        self._take(kept)

    def _take(self, kept: Kept | None) -> None:
        was, before, known = self._kept, self.tag, self._known
        if kept is not None and kept.tag != before:
            self._obtained = self._wall()
        self._kept, self._known, self._read_at = kept, True, trio.current_time()
        if not known or before == self.tag:
            return
        # Renewed tokens are the same account.
        again = was is None or kept is None or was.account.connected != kept.account.connected
        if again or before == self._blocked:
            self._changed(self.place)

    async def load(self) -> None:
        async with self._lock:
            if self.fresh:
                return
            try:
                await self.read(used=True)
            except AwayError:
                # What is known goes on; a moment later the store is asked again.
                self._read_at = trio.current_time()
                return
            kept = self._kept
            if kept is not None and self._due(kept) and trio.current_time() - self._failed_at >= AGAIN:
                try:
                    await self._renew(kept)
                except RefusedError:
                    self._failed_at = trio.current_time()

    async def refused(self, challenge: Challenge | None, sent: str | None, *, scope: bool) -> None:
        async with self._lock:
            if self.token is not None and self.token != sent:
                return
            try:
                await self.read()
            except AwayError as error:
                raise RefusedError("auth_unavailable", str(error)) from error
            if self.token is not None and self.token != sent:
                return
            self.challenge = challenge or self.challenge
            kept = self._kept
            if kept is None or sent is None:
                self._block("it is not connected with your account there")
            elif scope:
                self._step_up(challenge, kept)
            elif kept.account.tokens.refresh is not None:
                await self._renew(kept)
                if self.token is not None and self.token != sent:
                    return
                self._block("your account there has to be connected again")
            else:
                self._block("your account there has to be connected again")

    def _block(self, message: str) -> None:
        if self._kept is not None and self._blocked != self.tag:
            of = {"account": self.place.principal, "iss": self._kept.account.issuer}
            self._vault.told.token("token.refused", self.place.backend, **of, reason="not_connected")
        self._blocked = self.tag
        raise RefusedError("not_connected", message)

    def _step_up(self, challenge: Challenge | None, kept: Kept) -> None:
        """Rights that the account was asked for in vain are not asked for for ever."""
        wanted = (challenge.scopes or ()) if challenge is not None else ()
        now, asked = trio.current_time(), frozenset(wanted)
        before = {tag for at, scopes, tag in self._steps if scopes == asked and now - at < STEPS_WITHIN}
        if not wanted or len(before - {self.tag}) >= STEPS:
            raise RefusedError("insufficient_scope", "your account there has not the rights that it needs")
        if self.tag not in before:  # else it is one of several calls that need them, or the user has not looked yet
            self._steps.append((now, asked, self.tag))
        self.wanted = tuple(dict.fromkeys((*kept.account.asked, *kept.account.tokens.scopes, *wanted)))
        self._block(f"it needs more rights at your account there: {' '.join(wanted)[:200]}")

    # Renewal

    async def _renew(self, kept: Kept) -> None:
        """Raises RefusedError where it could not be done now; where it never can, there is no account afterwards."""
        renewal = self._renewal
        if renewal is None:
            renewal = self._renewal = _Renewal()
            self._start(lambda: self._run(renewal, kept))
        with trio.move_on_after(WITHIN):
            await renewal.done.wait()
        if not renewal.done.is_set():
            raise RefusedError("auth_unavailable", "its authorization server is too slow")
        if renewal.error is not None:
            raise renewal.error

    async def _run(self, renewal: "_Renewal", kept: Kept) -> None:
        """In a task of its own: an answer that nobody keeps would be a lost account."""
        try:
            await self._locked(kept)
        except AwayError as error:
            renewal.error = RefusedError("auth_unavailable", str(error))
        except OAuthError as error:
            self._log.warning("auth_failed", backend=self.place.backend, reason=error.reason, error=str(error))
            renewal.error = RefusedError("auth_unavailable", str(error))
        finally:
            self._renewal = None
            renewal.done.set()

    async def _locked(self, kept: Kept) -> None:
        who = secrets.token_hex(8)
        with trio.move_on_after(LOCKED) as waiting:
            while not await self._vault.lock(self.place, who, LOCKED):
                await trio.sleep(0.2)
                if await self._moved_on(kept):
                    return
        if waiting.cancelled_caught:
            raise AwayError("locked", "the account is being renewed elsewhere")
        try:
            if not await self._moved_on(kept):
                await self._refresh(kept)
        finally:
            with trio.move_on_after(2, shield=True):
                await self._vault.unlock(self.place, who)

    async def _moved_on(self, kept: Kept) -> bool:
        """Whether it is another account by now, or there is none."""
        now = await self._read()
        if now is not None and now.account == kept.account:
            return False  # though an operator may have sealed it by another key
        self._take_renewed(now)
        return True

    async def _refresh(self, kept: Kept) -> None:
        account = kept.account
        refresh, auth = account.tokens.refresh, self.spec.auth
        assert refresh is not None
        assert auth is not None
        renewed: Account | None = None
        tag, written = None, False
        try:
            # Though the gateway ends: once this is asked, the old pair may be of no use any more.
            with trio.move_on_after(ENDS_WITHIN, shield=True):
                tokens = await self._discovery.tokens(
                    account.issuer,
                    account.token_endpoint,
                    client_now(auth, account),
                    grants.refresh_form(refresh, None if auth.omit_resource else account.resource),
                    asked=account.tokens.scopes,
                    now=self._wall(),
                    trusted=trusted_by(self.place.url, *auth.named),
                )
                tokens = tokens if tokens.refresh is not None else replace(tokens, refresh=refresh)
                renewed = replace(account, tokens=tokens)
                tag, written = await self._written(renewed, kept), True
        except (GrantRefusedError, ClientRefusedError) as refused:
            if isinstance(refused, ClientRefusedError) and self._is_operators(account.client):
                raise  # that is for the operator to mend, and no fault of the account
            # Another replica whose lock was lost may have been faster: then its account is the one that counts.
            if not await self._moved_on(kept):
                if isinstance(refused, ClientRefusedError):
                    await self._vault.forget_client(self.place, account)
                await self._vault.drop(self.place, kept.tag)
                self._log.info("account_ended", backend=self.place.backend, reason=refused.reason)
                of = {"account": self.place.principal, "iss": account.issuer}
                self._vault.told.token("token.refused", self.place.backend, **of, reason=refused.reason)
                self._take_renewed(None)
            return
        if renewed is None:
            raise AwayError("too_slow", "its authorization server is too slow")
        if not written:
            tag = await self._written(renewed, kept)
        self._take_renewed(Kept(renewed, tag) if tag is not None else await self._read())
        if self._kept is None and await self._vault.empty(self.place):
            # Its user has ended it meanwhile, and the issuer was told of the old pair. (Where another account stands,
            # to give these back might end that one: it may be of the same grant.)
            await give_back(self._discovery, self._vault, self.place, renewed, self.spec, self._wall())
            return
        await self._vault.use_client(self.place, renewed)

    def _is_operators(self, client: Client) -> bool:
        """Whether its credentials stand in the configuration."""
        assert self.spec.auth is not None
        described = self._discovery.described
        return client.id == self.spec.auth.client_id or (described is not None and described.signs(client))

    async def _written(self, account: Account, kept: Kept) -> str | None:
        """The old pair is used up: the new one is written as soon as that can be done, in place of the old one, by
        whichever key that is sealed meanwhile. None: there is another one, or none."""
        until, pause = trio.current_time() + WRITES_WITHIN, 0.2
        before: Kept | None = kept
        while True:
            try:
                while before is not None and before.account == kept.account:
                    tag = await self._vault.put(self.place, account, instead=before.tag)
                    if tag is not None:
                        return tag
                    before = await self._vault.read(self.place)
                return None
            except AwayError:
                if trio.current_time() >= until:
                    self._log.error("account_not_written", backend=self.place.backend)
                    raise
            await trio.sleep(pause)
            pause = min(5.0, pause * 2)


class _Renewal:
    """One that runs."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: RefusedError | None = None
