"""What stands in the store of users' accounts, for whoever can read and write it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.ports import Asker, Principal, Rights, Shelved
from actors.protocol.table import BackendSpec, HttpTarget, Limits, UpstreamAuth
from gateway.oauth.accounts import FRESH, UserAccount
from gateway.oauth.grants import Client, Tokens
from gateway.oauth.subjects import Subjects
from gateway.oauth.vault import CLIENT_LIVES, Account, AccountKey, Vault, shelf_key, there
from gateway.sealing import AesSealer
from gateway.store.memory import MemoryStore
from gateway.store.shelf import MemoryShelf
from tests.oauth.test_user_accounts import TOKENS, Browser, configured, flow_of
from tests.support.authorized import open_authorized
from tests.support.harness import RecordingLog
from tests.support.oauth import open_oauth_world

SEALER = AesSealer([b"k" * 32])
ANN, BOB = AccountKey("ann", "a", "https://a.test/mcp"), AccountKey("bob", "a", "https://a.test/mcp")
CLIENT = Client("the-client", "client_secret_basic", "the-secret")
ACCOUNT = Account("https://as.test", "https://as.test/token", CLIENT, Tokens("the-access", "the-refresh", 2e9, ("x",)))
CREDENTIALS = (b"the-access", b"the-refresh", b"the-secret", b"the-subject")


class Recorder:
    """A shelf, and every value that was put there, by its key."""

    def __init__(self, shelf: Any) -> None:
        self.shelf = shelf
        self.written: dict[str, bytes] = {}

    async def put(self, key: str, value: bytes, seconds: float, **more: Any) -> Any:
        self.written[key] = value
        return await self.shelf.put(key, value, seconds, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shelf, name)


def key_of(place: AccountKey) -> str:
    return shelf_key("account", place.principal, place.backend, place.url)


async def read(shelf: Any, key: str) -> Shelved:
    found = there(await shelf.read(key))
    assert found is not None
    return found


async def test_12_nothing_of_a_token_stands_in_the_store_as_it_is(stores: tuple[Any, Any]) -> None:
    shelf: Any = Recorder(stores[0].shelf)
    vault = Vault(shelf, SEALER)
    await vault.put(ANN, ACCOUNT)
    await vault.keep_client("a", ANN.url, "https://as.test", "https://gw.test/connect/callback", CLIENT)
    subjects = Subjects(shelf, SEALER, lambda: 1e9)
    await subjects.note(Asker(Principal("ann"), Rights("https://as.test", "ann", expiry=2e9)), "the-subject")
    assert len(shelf.written) == 4
    for key, value in shelf.written.items():
        assert (await read(stores[1].shelf, key)).value == value
        assert not any(part in value or part.decode() in key for part in CREDENTIALS)
    kept = await Vault(stores[1].shelf, SEALER).read(ANN)
    assert kept is not None
    assert kept.account == ACCOUNT
    assert not any(part.decode() in repr(kept) for part in CREDENTIALS)


@pytest.mark.parametrize("other", [BOB, replace(ANN, backend="b"), replace(ANN, url="https://evil.test/mcp")])
async def test_1_an_account_that_was_moved_to_another_place_does_not_open(
    stores: tuple[Any, Any], other: AccountKey
) -> None:
    shelf = stores[0].shelf
    vault = Vault(shelf, SEALER)
    await vault.put(ANN, ACCOUNT)
    there(await shelf.put(key_of(other), (await read(shelf, key_of(ANN))).value, 60.0))
    assert await vault.read(other) is None
    assert await vault.read(ANN) is not None


@pytest.mark.parametrize("value", [b"x", b"\xff\xfe", b"a" * 10_000])
async def test_what_was_written_over_is_no_account(stores: tuple[Any, Any], value: bytes) -> None:
    shelf = stores[0].shelf
    there(await shelf.put(key_of(ANN), value, 60.0))
    assert await Vault(shelf, SEALER).read(ANN) is None
    there(await shelf.put(key_of(ANN), SEALER.seal(b"{}", b"other").encode(), 60.0))
    assert await Vault(shelf, SEALER).read(ANN) is None


async def test_a_key_that_is_no_longer_there_opens_nothing(stores: tuple[Any, Any]) -> None:
    old, new = b"o" * 32, b"n" * 32
    shelf = stores[0].shelf
    await Vault(shelf, AesSealer([old])).put(ANN, ACCOUNT)
    assert await Vault(shelf, AesSealer([new, old])).read(ANN) is not None
    assert await Vault(shelf, AesSealer([new])).read(ANN) is None


class Late:
    """A shelf that has what somebody reads in the account, and says so when `come` is set: when a client is read."""

    def __init__(self, shelf: Any) -> None:
        self.shelf = shelf
        self.held = False
        self.come = trio.Event()

    async def read(self, key: str, **more: Any) -> Any:
        found, held, self.held = await self.shelf.read(key, **more), self.held, False
        if held:
            await self.come.wait()
        elif key.startswith(("client:", "issuer:")):
            self.come.set()
            await wait_all_tasks_blocked()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shelf, name)


async def test_1_what_was_read_before_a_renewal_is_not_taken_for_the_account_after_it() -> None:
    """Who looks at the account meanwhile, since another replica has told of it, may hear of it late. (Attack 1 met it:
    a user had to connect his account again.)"""
    shelf: Any = Late(MemoryShelf(trio.current_time))
    vault = Vault(shelf, SEALER)
    spec = BackendSpec("a", HttpTarget(ANN.url), auth=UpstreamAuth("user"))

    class Issuer:
        async def tokens(self, *_: Any, **__: Any) -> Tokens:
            return Tokens("new-access", "new-refresh", 2e9)

    await vault.put(ANN, ACCOUNT)
    async with trio.open_nursery() as nursery:
        start = lambda fn: nursery.start_soon(fn)  # noqa: E731
        issuer = cast(Any, Issuer())
        account = UserAccount(ANN, spec, issuer, vault, start, lambda: 0.0, RecordingLog(), lambda _: None)
        await account.load()
        shelf.held = True
        nursery.start_soon(account.read)
        await wait_all_tasks_blocked()
        await account.refused(None, "the-access", scope=False)
        assert account.token == "new-access"
    assert account.token == "new-access"


async def test_an_account_ends_thirty_days_after_its_last_use_and_not_after_its_last_change(
    autojump_clock: MockClock,
) -> None:
    """A key that a user gave, or a token that never ends, is never written again."""
    now = [0.0]
    vault, nothing = Vault(MemoryShelf(lambda: now[0]), SEALER), cast(Any, None)
    spec = BackendSpec("a", HttpTarget(ANN.url))
    log = RecordingLog()
    account = UserAccount(ANN, spec, nothing, vault, nothing, lambda: now[0], log, lambda _: None)
    await vault.put(ANN, replace(ACCOUNT, tokens=Tokens("the-access")))
    for _ in range(40):
        now[0] += 86400.0
        await trio.sleep(FRESH)
        await account.load()
        assert account.token == "the-access"
    for day in range(40):  # somebody looks at the list of accounts each day
        now[0] += 86400.0
        assert (await vault.read(ANN) is not None) == (day < 29)


@pytest.mark.parametrize("use", ["sign-ins", "renewals"])
async def test_what_is_known_of_a_client_ends_a_year_after_its_last_use(use: str) -> None:
    """One that was registered, and to which issuer the secret of a configured one belongs."""
    now, day = [0.0], 86400.0
    vault = Vault(MemoryShelf(lambda: now[0]), SEALER)
    account = replace(ACCOUNT, redirect_uri="https://gw.test/connect/callback")
    client = ("a", ANN.url, account.issuer, account.redirect_uri)
    secret = ("a", ANN.url, CLIENT.id)
    await vault.keep_client(*client, CLIENT)
    assert await vault.first_issuer(*secret, account.issuer) == account.issuer
    for _ in range(3):
        now[0] += 300 * day
        if use == "renewals":
            await vault.use_client(ANN, account)
        else:
            assert await vault.client(*client) == CLIENT
            assert await vault.first_issuer(*secret, "https://thief.test") == account.issuer
    now[0] += 364 * day
    assert await vault.first_issuer(*secret, "https://thief.test") == account.issuer
    assert await vault.client(*client) == CLIENT
    now[0] += 366 * day
    assert await vault.client(*client) is None


async def test_the_renewal_of_an_account_is_a_use_of_its_client(tmp_path: Path) -> None:
    store, used = MemoryStore(Limits(), trio.current_time), list[str]()
    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path, store=store) as gateway:
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        read = store.shelf.read

        async def watched(key: str, *, keep: float = 0.0) -> Any:
            used.extend([key] if keep == CLIENT_LIVES else [])
            return await read(key, keep=keep)

        store.shelf.read = watched  # type: ignore[method-assign]
        world.forget_tokens()
        await client.call("a__whoami")
        assert world.counts["refreshed"] == 1
    [registered] = await gateway.authorizing.authorization.vault.clients()
    assert registered in used
