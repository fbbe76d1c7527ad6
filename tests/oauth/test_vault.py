"""What stands in the store of users' accounts, for whoever can read and write it."""

from dataclasses import replace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from actors.ports import Asker, Principal, Rights, Shelved
from actors.protocol.table import BackendSpec, HttpTarget
from gateway.oauth.accounts import FRESH, UserAccount
from gateway.oauth.grants import Client, Tokens
from gateway.oauth.subjects import Subjects
from gateway.oauth.vault import Account, Place, Vault, shelf_key, there
from gateway.sealing import AesSealer
from gateway.store.shelf import MemoryShelf
from tests.support.harness import RecordingLog

SEALER = AesSealer([b"k" * 32])
ANN, BOB = Place("ann", "a", "https://a.test/mcp"), Place("bob", "a", "https://a.test/mcp")
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


def key_of(place: Place) -> str:
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
    stores: tuple[Any, Any], other: Place
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
