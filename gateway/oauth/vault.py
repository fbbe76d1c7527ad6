"""Users' accounts at servers, sealed, on the shelf that all replicas share.

An account belongs to a principal, to a server by its name *and its URL*, and to the issuer of its tokens: another
server that takes over a name finds nothing. What is read was sealed for this place: a value that was moved elsewhere
does not open.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from actors.ports import Failed, Refused, Sealer, Shelf, Shelved
from gateway.oauth.errors import AwayError
from gateway.oauth.grants import Client, Tokens
from gateway.oauth.token_trail import NO_TRAIL, TokenEvent, TokenTrail

_T = TypeVar("_T")

LIVES: Final = 30 * 86400.0
"""Seconds that an account is kept without being used."""
CLIENT_LIVES: Final = 365 * 86400.0
"""Seconds that a client is kept without being used which was registered; and the issuer that was the first to get a
secret."""


@dataclass(frozen=True, slots=True)
class AccountKey:
    """Whose account at which server."""

    principal: str
    backend: str
    url: str


@dataclass(frozen=True, slots=True)
class Account:
    """Tokens, and what it takes to have new ones. `asked`: the scopes that were asked for last."""

    issuer: str
    token_endpoint: str
    client: Client
    tokens: Tokens
    resource: str | None = None
    revocation_endpoint: str | None = None
    asked: tuple[str, ...] = ()
    connected: float = 0.0
    """When the user did, by the wall clock."""
    redirect_uri: str = ""
    """Of the client, where it was registered for this server."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An account as it was read; `tag` is another one with each change."""

    account: Account
    tag: str


class _Sealed(Struct):
    account: Account


class _SealedClient(Struct):
    client: Client


class Vault:
    """Reads and writes the accounts of users. Raises AwayError where the store is away."""

    def __init__(self, shelf: Shelf, sealer: Sealer, told: TokenTrail = NO_TRAIL) -> None:
        self.told = told
        self._shelf = shelf
        self._sealer = sealer

    async def read(self, place: AccountKey, *, used: bool = False) -> Kept | None:
        """The account, if there is one that can be read. `used`: it is, and is not to end."""
        key = shelf_key("account", place.principal, place.backend, place.url)
        found = there(await self._shelf.read(key, keep=LIVES if used else 0.0))
        if found is None or not found.value:
            return None
        plain = opened(self._sealer, found, _context(key, place))
        if plain is None:
            return None
        try:
            return Kept(msgspec.json.decode(plain, type=_Sealed).account, found.tag)
        except msgspec.MsgspecError:
            return None

    async def empty(self, place: AccountKey) -> bool:
        """Whether nothing stands there, not even what none of our keys opens."""
        found = there(await self._shelf.read(shelf_key("account", place.principal, place.backend, place.url)))
        return found is None or not found.value

    async def put(self, place: AccountKey, account: Account, *, instead: str | None = None) -> str | None:
        """Keeps an account → its tag; None where another one stands than is expected (`instead`)."""
        key = shelf_key("account", place.principal, place.backend, place.url)
        sealed = self._sealer.seal(msgspec.json.encode(_Sealed(account)), _context(key, place)).encode()
        tag = await self._shelf.put(key, sealed, LIVES, instead=instead)
        if isinstance(tag, Failed) and tag.reason is Refused.FENCED:
            return None
        there(tag)
        if account.issuer:  # else it is a key
            self._tell("token.fetch" if instead is None else "token.refresh", place, account)
        return there(tag)

    def _tell(self, event: TokenEvent, place: AccountKey, account: Account, **more: object) -> None:
        scopes = {"scopes": list(account.tokens.scopes)} if event in ("token.fetch", "token.refresh") else {}
        self.told.token(event, place.backend, account=place.principal, iss=account.issuer, **scopes, **more)

    def revoked(self, place: AccountKey, account: Account, *, done: bool) -> None:
        """A token of an account that is no more was given back to its issuer, or that was tried."""
        self._tell("token.revoke", place, account, outcome="revoked" if done else "failed")

    async def remember(self, place: AccountKey) -> None:
        """Has the account found by `places`."""
        await self._shelf.name(_name(place), there=True)

    async def drop(self, place: AccountKey, tag: str) -> bool:
        """The account is no more; False where it is another one by now."""
        key = shelf_key("account", place.principal, place.backend, place.url)
        outcome = await self._shelf.put(key, b"", 1.0, instead=tag)
        if isinstance(outcome, Failed) and outcome.reason is Refused.FENCED:
            return False
        there(outcome)
        await self._shelf.name(_name(place), there=False)
        return True

    async def take(self, place: AccountKey) -> Account | None:
        """The account, which is no more."""
        kept = await self.read(place)
        there(await self._shelf.take(shelf_key("account", place.principal, place.backend, place.url)))
        await self._shelf.name(_name(place), there=False)
        return kept.account if kept is not None else None

    async def rewrap(self, place: AccountKey) -> bool | None:
        """Seals the account anew, by the key that seals at present. False: none of our keys opens it; None: there is
        none, or somebody has just written another one, by that key."""
        key = shelf_key("account", place.principal, place.backend, place.url)
        return await self._rewrap(key, _context(key, place), LIVES)

    async def _rewrap(self, key: str, context: bytes, lives: float) -> bool | None:
        found = there(await self._shelf.read(key))
        if found is None or not found.value:
            return None
        plain = opened(self._sealer, found, context)
        if plain is None:
            return False
        tag = await self._shelf.put(key, self._sealer.seal(plain, context).encode(), lives, instead=found.tag)
        if isinstance(tag, Failed) and tag.reason is Refused.FENCED:
            return None
        there(tag)
        return True

    async def places(self) -> Sequence[AccountKey]:
        """The keys of all accounts, those that have ended lately included."""
        found = []
        for name in there(await self._shelf.names()):
            try:
                found.append(AccountKey(*msgspec.json.decode(name, type=tuple[str, str, str])))
            except msgspec.MsgspecError:
                continue
        return sorted(found, key=lambda place: (place.principal, place.backend))

    async def lock(self, place: AccountKey, who: str, seconds: float) -> bool:
        """Whether this one may renew the account now."""
        key = shelf_key("account", place.principal, place.backend, place.url)
        return there(await self._shelf.lock(key, who, seconds))

    async def unlock(self, place: AccountKey, who: str) -> None:
        """Gives the lock back."""
        await self._shelf.unlock(shelf_key("account", place.principal, place.backend, place.url), who)

    # Clients

    async def client(self, backend: str, url: str, issuer: str, redirect_uri: str) -> Client | None:
        """The client that was registered there for this server, by any replica; who asks uses it."""
        key = shelf_key("client", backend, url, issuer, redirect_uri)
        found = there(await self._shelf.read(key, keep=CLIENT_LIVES))
        plain = opened(self._sealer, found, key.encode())
        if not plain:
            return None
        try:
            return msgspec.json.decode(plain, type=_SealedClient).client
        except msgspec.MsgspecError:
            return None

    async def keep_client(self, backend: str, url: str, issuer: str, redirect_uri: str, client: Client | None) -> None:
        """Keeps it, or forgets it."""
        key = shelf_key("client", backend, url, issuer, redirect_uri)
        if client is None:
            there(await self._shelf.take(key))
        else:
            sealed = self._sealer.seal(msgspec.json.encode(_SealedClient(client)), key.encode())
            there(await self._shelf.put(key, sealed.encode(), CLIENT_LIVES))
        name = msgspec.json.encode(("client", key)).decode()
        await self._shelf.name(name, there=client is not None)

    async def use_client(self, place: AccountKey, account: Account) -> None:
        """The client of this account was used: what is kept of it stays for those who connect later. A store that is
        away is told the next time."""
        for key in (
            shelf_key("client", place.backend, place.url, account.issuer, account.redirect_uri),
            shelf_key("issuer", place.backend, place.url, account.client.id),
        ):
            await self._shelf.read(key, keep=CLIENT_LIVES)

    async def forget_client(self, place: AccountKey, account: Account) -> None:
        """The authorization server does not know the client of this account any more: whoever connects next has another
        one registered, if no other one is by now."""
        where = (place.backend, place.url, account.issuer, account.redirect_uri)
        known = await self.client(*where)
        if known is not None and known.id == account.client.id:
            await self.keep_client(*where, None)

    async def clients(self) -> Sequence[str]:
        """Where all of them stand, those that have ended lately included."""
        found = []
        for name in there(await self._shelf.names()):
            try:
                found.append(msgspec.json.decode(name, type=tuple[Literal["client"], str])[1])
            except msgspec.MsgspecError:
                continue
        return sorted(found)

    async def rewrap_client(self, key: str) -> bool | None:
        """As `rewrap`, for the client that stands there."""
        return await self._rewrap(key, key.encode(), CLIENT_LIVES)

    async def first_issuer(self, backend: str, url: str, client_id: str, issuer: str) -> str:
        """The issuer that a configured client belongs to where none is configured: the first one that the server
        named. It is that of no other one, whatever the server names later."""
        key = shelf_key("issuer", backend, url, client_id)
        found = there(await self._shelf.read(key, keep=CLIENT_LIVES))
        if found is None:
            tag = await self._shelf.put(key, issuer.encode(), CLIENT_LIVES, instead="")
            if not isinstance(tag, Failed):
                return issuer
            found = there(await self._shelf.read(key))
        return found.value.decode(errors="replace") if found is not None else issuer


def there(outcome: "Failed | _T") -> "_T":
    """What the shelf has, or AwayError."""
    if isinstance(outcome, Failed):
        raise AwayError("store_away", "the store of the accounts is not available")
    return outcome


def opened(sealer: Sealer, found: Shelved | None, context: bytes) -> bytes | None:
    """What was sealed there; None: nothing that our keys open for this place, whatever somebody has written over it."""
    return sealer.unseal(found.value.decode("latin-1"), context) if found is not None else None


def shelf_key(kind: str, *parts: str) -> str:
    """Where a value of this kind stands: a digest, which says nothing of its parts."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        data = part.encode()
        digest.update(b"\0%d\0" % len(data) + data)
    return f"{kind}:{digest.hexdigest()[:32]}"


def _context(key: str, place: AccountKey) -> bytes:
    return msgspec.json.encode(("vault", key, place.principal, place.backend, place.url))


def _name(place: AccountKey) -> str:
    return msgspec.json.encode((place.principal, place.backend, place.url)).decode()
