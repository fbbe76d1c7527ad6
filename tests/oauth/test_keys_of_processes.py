"""Servers that are processes, started for one user each with the key that he has given on our page."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.protocol.table import Limits
from gateway.config.problems import ConfigError
from gateway.store.memory import MemoryStore
from tests.oauth.test_user_accounts import TOKENS, URL_MODE, Browser, text_of
from tests.support.authorized import Running, open_authorized
from tests.support.oauth import OAuthWorld
from tests.support.patience import PATIENCE

SERVER = str(Path(__file__).with_name("keyed_server.py"))
ANN, BOB = "anns-key-0001", "bobs-key-0002"


def configured(**server: Any) -> dict[str, Any]:
    keyed = {"command": sys.executable, "args": [SERVER], "auth": {"mode": "key", "variable": "SERVICE_KEY"}}
    return {"mcpServers": {"k": keyed | server}, "gateway": {"auth": {"tokens": TOKENS}}}


async def accounts(gateway: Running, user: str) -> tuple[Browser, str]:
    """A browser of this user, and the page with his accounts."""
    browser = Browser(gateway, OAuthWorld(), user)
    await browser.press("/connect", await browser.open("/connect"), token=TOKENS[user])
    return browser, await browser.open("/connect")


async def give(gateway: Running, user: str, key: str) -> str:
    """Gives a key on the page → the page that follows."""
    browser, page = await accounts(gateway, user)
    onward = await browser.press("/connect", page, backend="k", action="connect")
    url = onward.partition("0;url=")[2].partition('"')[0]
    return await browser.press(url, await browser.open(url), key=key)


async def whose(client: Any, tool: str = "k__whose") -> dict[str, Any]:
    result = await client.call(tool)
    assert not result.get("isError"), text_of(result)
    found: dict[str, Any] = json.loads(text_of(result))
    return found


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and " Z " not in stat.read_text()


async def test_each_user_has_a_process_with_his_key_and_nobody_else_hears_of_it(tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with open_authorized(configured(), tmp_path) as gateway:
            pids = {}
            for user, key in (("ann", ANN), ("bob", BOB)):
                client = gateway.legacy(token=TOKENS[user], capabilities=URL_MODE)
                await client.connect()
                call = client.start_call("k__whose")
                asked = await call.message("elicitation/create")
                await client.answer(asked, {"action": "accept"})
                assert "is connected" in await give(gateway, user, key)
                found = json.loads(text_of(await call.result()))
                assert found["key"] == key
                pids[user] = found["pid"]
                again = gateway.legacy("/mcp/k", token=TOKENS[user])
                await again.connect()
                assert await whose(again, "whose") == found, "all his sessions have one process"
                modern = await gateway.modern(token=TOKENS[user]).start_call("k__whose").complete()
                assert json.loads(text_of(modern))["key"] == key
            assert pids["ann"] != pids["bob"]
            words = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
            told = repr(words) + repr(gateway.log.events) + repr(gateway.metrics.numbers())
            told += repr(gateway.actors.backends.status) + repr(gateway.actors)
            assert ANN not in told
            assert BOB not in told
            assert "backend_stderr" in told


async def test_a_key_that_is_taken_back_ends_the_process_on_every_replica(tmp_path: Path) -> None:
    store = MemoryStore(Limits(), trio.current_time)
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    with trio.fail_after(PATIENCE):
        async with (
            open_authorized(configured(), folders[0], store=store) as one,
            open_authorized(configured(), folders[1], store=store.beside()) as other,
        ):
            await give(one, "ann", ANN)
            pids = []
            for gateway in (one, other):
                client = gateway.legacy(token=TOKENS["ann"])
                await client.connect()
                pids.append((await whose(client))["pid"])
            browser, page = await accounts(one, "ann")
            await browser.press("/connect", page, backend="k", action="disconnect")
            while any(map(alive, pids)):
                await trio.sleep(0.05)
            for gateway in (one, other):
                client = gateway.legacy(token=TOKENS["ann"])
                await client.connect()
                assert (await client.call("k__whose"))["isError"] is True


async def test_a_key_that_was_given_at_another_replica_starts_the_process_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before this one is told: what it finds then ends nothing."""
    monkeypatch.setattr("gateway.oauth.accounts.FRESH", 0.0)
    monkeypatch.setattr("gateway.oauth.service.FRESH", 1000.0)
    store = MemoryStore(Limits(), trio.current_time)
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    with trio.fail_after(PATIENCE):
        async with (
            open_authorized(configured(), folders[0], store=store) as one,
            open_authorized(configured(), folders[1], store=store.beside()) as other,
        ):
            client = other.legacy(token=TOKENS["ann"])
            await client.connect()
            assert (await client.call("k__whose"))["isError"] is True
            await give(one, "ann", ANN)
            assert (await whose(client))["key"] == ANN


async def test_a_bad_key_of_one_user_is_nothing_to_the_others(tmp_path: Path) -> None:
    """Neither opens it the breaker for them, nor are they told what the server said of it."""
    with trio.fail_after(PATIENCE):
        async with open_authorized(configured(), tmp_path) as gateway:
            await give(gateway, "bob", "bad-key-of-bob")
            bob = gateway.legacy(token=TOKENS["bob"])
            await bob.connect()
            for _ in range(4):
                with pytest.raises(Exception) as refused:
                    await bob.call("k__whose")
                assert "bad-key-of-bob" not in str(vars(refused.value))
            status = gateway.actors.backends.status["k"]
            assert (status.failure, status.failures) == (None, 0)
            await give(gateway, "ann", ANN)
            ann = gateway.legacy(token=TOKENS["ann"])
            await ann.connect()
            assert (await whose(ann))["key"] == ANN


@pytest.mark.parametrize(
    ("auth", "told"),
    [
        ({"mode": "key"}, "the variable that carries the key"),
        ({"mode": "key", "variable": "A B"}, "is not a name that a variable can have"),
        ({"mode": "key", "variable": "PAGER"}, "stands in `env` too"),
        ({"mode": "user"}, "goes with `url`"),
        ({"mode": "key", "variable": "K", "catalog": "x"}, "has no meaning for a process"),
    ],
)
async def test_what_could_not_work_is_refused_at_start(auth: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        async with open_authorized(configured(auth=auth, env={"PAGER": "cat"}), tmp_path):
            pass


@pytest.mark.parametrize("sharing", ["shared", "pool"])
async def test_a_process_with_a_key_is_nobody_elses_to_share(sharing: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an account is one user"):
        async with open_authorized(configured(sharing=sharing), tmp_path):
            pass
