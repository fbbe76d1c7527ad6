"""What must not become of accounts while they are renewed, and of calls that wait for one."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports import Failed, Refused
from actors.protocol.table import Limits
from gateway.config import load
from gateway.oauth import accounts
from gateway.store.memory import MemoryStore
from tests.oauth.test_user_accounts import TOKENS, URL_MODE, Browser, configured, flow_of, opened, told, user_of
from tests.support.authorized import open_authorized
from tests.support.oauth import open_oauth_world
from tests.support.patience import PATIENCE
from tests.support.wire_client import RpcError


async def test_a_new_pair_is_written_when_the_store_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one is used up by then."""
    store = MemoryStore(Limits(), trio.current_time)
    put, away = store.shelf.put, []

    async def sometimes(*given: Any, **more: Any) -> Any:
        if len(away) < 3 and world.counts["refreshed"] == 1:
            away.append(given[0])
            return Failed(Refused.AWAY)
        return await put(*given, **more)

    async with open_oauth_world() as world, open_authorized(configured(world), tmp_path, store=store) as gateway:
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        await client.call("a__whoami")
        monkeypatch.setattr(store.shelf, "put", sometimes)
        for _ in range(2):
            world.forget_tokens()
            assert user_of(await client.call("a__whoami")) == "ann"
        assert len(away) == 3
        assert (world.counts["refreshed"], world.counts["reuse"]) == (2, 0)


async def test_a_new_pair_is_written_though_the_gateway_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(Limits(), trio.current_time)
    folder = tmp_path / "2"
    folder.mkdir()
    async with open_oauth_world() as world:
        async with open_authorized(configured(world), tmp_path, store=store) as gateway:
            await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            await client.call("a__whoami")
            world.forget_tokens()
            discovery = gateway.authorizing.authorization.discovery
            answered, tokens = trio.Event(), discovery.tokens

            async def slowly(*given: Any, **more: Any) -> Any:
                found = await tokens(*given, **more)
                answered.set()
                await trio.sleep(0.2)
                return found

            monkeypatch.setattr(discovery, "tokens", slowly)
            client.start_call("a__whoami")
            with trio.fail_after(PATIENCE):
                await answered.wait()
        async with open_authorized(configured(world), folder, store=store) as gateway:
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            assert user_of(await client.call("a__whoami")) == "ann"
            assert world.counts["reuse"] == 0


async def test_a_new_pair_of_an_account_that_its_user_has_ended_meanwhile_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issuer was told of the old one, which was used up by then."""
    async with opened(tmp_path) as (world, gateway):
        ann = Browser(gateway, world, "ann")
        await ann.connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        await client.call("a__whoami")
        world.forget_tokens()
        discovery = gateway.authorizing.authorization.discovery
        tokens = discovery.tokens

        async def ended(*given: Any, **more: Any) -> Any:
            found = await tokens(*given, **more)
            await ann.press("/connect", await ann.open("/connect"), backend="a", action="disconnect")
            return found

        monkeypatch.setattr(discovery, "tokens", ended)
        client.start_call("a__whoami")
        with trio.fail_after(PATIENCE):
            while len(world.revoked) < 4:
                await trio.sleep(0.01)
        assert world.counts["refreshed"] == 1
        assert world.refresh == {}
        assert (await gateway.accounts("accounts"))[1]["accounts"] == []


async def test_a_new_pair_is_written_though_the_account_is_sealed_anew_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account that an operator has sealed by another key is no other account."""
    async with opened(tmp_path) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        await client.call("a__whoami")
        authorization = gateway.authorizing.authorization
        tokens, lock = authorization.discovery.tokens, authorization.vault.lock

        async def rewrap_after(*given: Any, **more: Any) -> Any:
            found = await tokens(*given, **more)
            assert (await gateway.accounts("rewrap"))[1]["rewrapped"] == 1
            return found

        async def rewrap_before(*given: Any, **more: Any) -> Any:
            assert (await gateway.accounts("rewrap"))[1]["rewrapped"] == 1
            return await lock(*given, **more)

        for where, name, act in (
            (authorization.discovery, "tokens", rewrap_after),
            (authorization.vault, "lock", rewrap_before),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(where, name, act)
                world.forget_tokens()
                assert user_of(await client.call("a__whoami")) == "ann"
        world.forget_tokens()
        assert user_of(await client.call("a__whoami")) == "ann"
        assert (world.counts["refreshed"], world.counts["reuse"]) == (3, 0)


async def test_a_secret_of_ours_that_is_wrong_ends_nobodys_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, clientId="gw", clientSecret="gw secret") as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        await client.call("a__whoami")
        world.forget_tokens()
        world.secrets["gw"] = "another one"
        with pytest.raises(RpcError) as refused:
            await client.call("a__whoami")
        assert refused.value.data["reason"] == "auth_unavailable"
        assert "gw secret" not in repr(gateway.log.events)
        world.secrets["gw"] = "gw secret"
        monkeypatch.setattr(accounts, "AGAIN", 0.0)
        assert user_of(await client.call("a__whoami")) == "ann"


async def test_a_client_that_its_issuer_has_forgotten_is_registered_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):

        def forget_clients() -> None:
            world.forgotten = {a.query["client_id"] for a in world.asked if a.path == "/authorize"}

        ann = Browser(gateway, world, "ann")
        await ann.connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        world.forget_tokens()
        forget_clients()
        assert (await client.call("a__whoami"))["isError"] is True
        url = await flow_of(gateway, "ann")
        page = await ann.press(url, await ann.open(url))
        back = await ann.sign_in(page)
        forget_clients()
        await ann.open(back)
        assert ann.pages[-1][0] == 400, "it was forgotten while its user signed in"
        assert "is connected" in await ann.connect(url)
        assert user_of(await client.call("a__whoami")) == "ann"
        assert world.counts["/register"] == 3


async def test_where_no_client_can_be_had_the_page_says_who_has_to_do_something(tmp_path: Path) -> None:
    async with opened(tmp_path, {"dcr": False}) as (world, gateway):
        ann, url = Browser(gateway, world, "ann"), await flow_of(gateway, "ann")
        await ann.press(url, await ann.open(url), token=TOKENS["ann"])
        said = await ann.press(url, await ann.open(url))
        assert (ann.pages[-1][0], "its operator has to configure" in said) == (400, True)
        assert world.counts["/authorize"] == 0


async def test_an_account_is_renewed_with_the_secret_that_is_configured_now(tmp_path: Path) -> None:
    store = MemoryStore(Limits(), trio.current_time)
    folder = tmp_path / "2"
    folder.mkdir()
    async with open_oauth_world() as world:
        client = {"clientId": "gw", "clientSecret": "gw secret"}
        async with open_authorized(configured(world, **client), tmp_path, store=store) as gateway:
            await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        world.secrets["gw"] = client["clientSecret"] = "the next secret"
        world.forget_tokens()
        async with open_authorized(configured(world, **client), folder, store=store) as gateway:
            wire = gateway.legacy(token=TOKENS["ann"])
            await wire.connect()
            assert user_of(await wire.call("a__whoami")) == "ann"
            ann = Browser(gateway, world, "ann")
            await ann.press("/connect", await ann.open("/connect"), token=TOKENS["ann"])
            await ann.press("/connect", await ann.open("/connect"), backend="a", action="disconnect")
            assert len(world.revoked) == 2, "and given back with it"


async def test_a_call_that_was_held_is_decided_anew_by_the_rules(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        call = client.start_call("a__whoami")
        asked = await call.message("elicitation/create")
        await client.answer(asked, {"action": "accept"})
        settings = configured(world)
        settings["gateway"]["policy"] = [{"who": {"principals": ["ann"]}, "allow": ["a:of_ann"]}]
        file = tmp_path / "ruled.json"
        file.write_text(json.dumps(settings))
        gateway.actors.replace_table(load(file).settings.table)
        await Browser(gateway, world, "ann").connect(asked["params"]["url"])
        with pytest.raises(RpcError) as refused:
            await call.result()
        assert refused.value.code == -32602
        assert world.calls() == []


@pytest.mark.parametrize("leaves", ["tokens", "changed"])
async def test_who_leaves_the_page_leaves_no_tokens_behind(
    leaves: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are asked for, or given back: they would be good at the service, and nobody would have them."""
    async with opened(tmp_path) as (world, gateway):
        authorization, left = gateway.authorizing.authorization, trio.CancelScope()
        where = authorization.discovery if leaves == "tokens" else authorization
        go_on = getattr(where, leaves)

        async def leave(*given: Any, **more: Any) -> Any:
            gateway.http.exchanges[-1].cut()
            left.cancel()
            return await go_on(*given, **more)

        ann, url = Browser(gateway, world, "ann"), await flow_of(gateway, "ann")
        await ann.press(url, await ann.open(url), token=TOKENS["ann"])
        back = await ann.sign_in(await ann.press(url, await ann.open(url)))
        if leaves == "changed":
            await ann.open(back)
        page = await ann.open("/connect")
        with monkeypatch.context() as patched, left:
            patched.setattr(where, leaves, leave)
            if leaves == "tokens":
                await ann.open(back)
            else:
                await ann.press("/connect", page, backend="a", action="disconnect")
        with trio.fail_after(PATIENCE):
            while ("Disconnect: a" in await ann.open("/connect")) is (leaves == "changed"):
                await trio.sleep(0.05)
            while len(world.revoked) < (2 if leaves == "changed" else 0):
                await trio.sleep(0.05)
            last = ("connect", "connected" if leaves == "tokens" else "disconnected")
            while last not in told(gateway):
                await trio.sleep(0.05)


async def test_what_is_told_here_for_too_long_keeps_no_tokens_from_being_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.oauth.flows.ENDS_WITHIN", 4.0)
    async with opened(tmp_path) as (world, gateway):
        ann, url = Browser(gateway, world, "ann"), await flow_of(gateway, "ann")
        await ann.press(url, await ann.open(url), token=TOKENS["ann"])
        await ann.open(await ann.sign_in(await ann.press(url, await ann.open(url))))
        page = await ann.open("/connect")
        with monkeypatch.context() as patched:
            patched.setattr(gateway.authorizing.authorization, "changed", lambda place: trio.sleep_forever())
            await ann.press("/connect", page, backend="a", action="disconnect")
        assert len(world.revoked) == 2
