"""Servers with an account of each user: the call of one who has not connected waits, and goes on when he has."""

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
import pytest
import trio

from actors.protocol.table import Limits
from gateway.oauth import pages
from gateway.oauth.connect import ASKING
from gateway.oauth.discovery import Discovery
from gateway.sealing import AesSealer
from gateway.store.memory import MemoryStore
from tests.support.authorized import ADDRESS, SEALER, Running, open_authorized
from tests.support.oauth import Granted, OAuthWorld, open_oauth_world
from tests.support.patience import PATIENCE
from tests.support.wire_client import RpcError

TOKENS = {name: name[0].upper() * 32 for name in ("ann", "bob")}
TOKENS_OF_TWO = tuple(TOKENS)
URL_MODE = {"elicitation": {"url": {}}}


def configured(world: OAuthWorld, **auth: Any) -> dict[str, Any]:
    return {
        "mcpServers": {"a": {"url": world.url, "auth": {"mode": "user"} | auth}},
        "gateway": {"auth": {"tokens": TOKENS}},
    }


@asynccontextmanager
async def opened(
    tmp_path: Path, options: dict[str, Any] | None = None, store: Any = None, **auth: Any
) -> AsyncIterator[tuple[OAuthWorld, Running]]:
    async with (
        open_oauth_world(**(options or {})) as world,
        open_authorized(configured(world, **auth), tmp_path, store=store) as gateway,
    ):
        yield world, gateway


@dataclass
class Browser:
    """Somebody's, who follows what is on a page and nothing else."""

    gateway: Running
    world: OAuthWorld
    user: str = ""
    cookies: dict[str, str] = field(default_factory=dict)
    pages: list[tuple[int, dict[str, str], str]] = field(default_factory=list)

    async def open(self, url: str, form: dict[str, str] | None = None) -> str:
        """One page of ours."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        headers = [("cookie", "; ".join(f"{k}={v}" for k, v in self.cookies.items()))]
        body = b""
        if form is not None:
            headers += [("content-type", "application/x-www-form-urlencoded"), ("origin", "null")]
            body = urlencode(form).encode()
        exchange = self.gateway.http.begin("POST" if form is not None else "GET", target, headers, body)
        text = (await exchange.whole()).decode()
        status = await exchange.head()
        if "set-cookie" in exchange.headers:
            name, _, value = exchange.headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        self.pages.append((status, exchange.headers, text))
        return text

    async def press(self, url: str, page: str, **more: str) -> str:
        """The first form on a page."""
        fields = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', page))
        return await self.open(url, {k: unescape(v) for k, v in fields.items()} | more)

    async def connect(self, url: str) -> str:
        """The whole way, from the link to the last page."""
        page = await self.open(url)
        if "Your token" in page:
            page = await self.press(url, page, token=TOKENS[self.user])
            page = await self.open(url)
        return await self.come_back(await self.press(url, page))

    async def come_back(self, page: str) -> str:
        back = await self.sign_in(page)
        return await self.open(back)

    async def sign_in(self, page: str) -> str:
        """At the authorization server: where it sends the browser back to."""
        onward = unescape(re.findall(r'content="0;url=([^"]*)"', page)[0])
        self.world.user = self.user
        async with httpx2.AsyncClient() as client:
            answer = await client.get(onward)
        assert answer.status_code == 302
        return str(answer.headers["location"])


def told(gateway: Running) -> list[tuple[str, str]]:
    """What the audit trail has of tokens and accounts, without a single token in it."""
    assert not re.search(r"(access|refresh|canary)-", json.dumps(gateway.trail.lines))
    return [(line["event"], str(line.get("outcome", line.get("reason", "")))) for line in gateway.trail.lines]


def text_of(result: Any) -> str:
    found: str = result["content"][0]["text"]
    return found


def user_of(result: Any) -> str:
    assert not result.get("isError"), text_of(result)
    return str(json.loads(text_of(result))["user"])


async def test_a_call_is_held_until_its_user_has_connected_and_runs_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        listed = await client.request("tools/list")
        assert [tool["name"] for tool in listed["tools"]] == ["a__connect"]
        call = client.start_call("a__whoami")
        asked = await call.message("elicitation/create")
        params = asked["params"]
        assert params["mode"] == "url"
        assert re.fullmatch(r"http://127\.0\.0\.1:8080/connect/[\w-]{22}", params["url"])
        await client.answer(asked, {"action": "accept"})
        last = await Browser(gateway, world, "ann").connect(params["url"])
        assert "is connected" in last
        assert user_of(await call.result()) == "ann"
        assert len(world.calls()) == 1
        assert gateway.held() == 0, "nothing is remembered of a call that is over"
        listed = await client.request("tools/list")
        assert {tool["name"] for tool in listed["tools"]} == {"a__whoami", "a__of_ann"}
        assert told(gateway) == [("token.fetch", ""), ("connect", "connected")]
        assert gateway.trail.of("connect")[0] | {"ip": ""} == {
            "event": "connect",
            "outcome": "connected",
            "server": "a",
            "account": "ann",
            "ip": "",
            "era": "legacy",
        }


async def test_the_tool_that_stands_for_a_server_without_an_account_runs_as_no_task(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, gateway):
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        await client.request("tools/list")
        with pytest.raises(RpcError) as refused:
            await client.request("tools/call", {"name": "a__connect", "task": {}})
        assert refused.value.code == -32601
        assert gateway.held() == 0


async def test_a_modern_call_is_answered_with_the_page_and_goes_on_when_it_comes_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        client = gateway.modern(token=TOKENS["ann"], capabilities=URL_MODE)
        call = client.start_call("a__whoami")
        required = await call.required()
        ((key, request),) = required["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        url = request["params"]["url"]
        again = client.retry(call, required, {key: {"action": "accept"}})
        await trio.sleep(0.1)
        await Browser(gateway, world, "ann").connect(url)
        assert user_of(await again.complete()) == "ann"
        assert len(world.calls()) == 1
        assert [line["era"] for line in gateway.trail.of("connect")] == ["modern"]


async def test_16_a_page_knows_nobody_whose_access_was_taken_away(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        ann, bob = Browser(gateway, world, "ann"), Browser(gateway, world, "bob")
        for browser in (ann, bob):
            await browser.press("/connect", await browser.open("/connect"), token=TOKENS[browser.user])
            assert "Connect: a" in (page := await browser.open("/connect"))
        gateway.revoked.add("ann")
        asked = await ann.open("/connect")
        assert "Who are you?" in asked
        assert "Connect: a" not in asked
        assert "Connect: a" not in await ann.press("/connect", page, backend="a", action="connect")
        assert "Connect: a" in await bob.open("/connect")
        gateway.revoked.clear()
        assert "Connect: a" in await ann.open("/connect")


async def test_5_a_user_goes_where_the_page_said_and_for_what_it_said(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway), open_oauth_world() as other:
        other.resource = world.url
        ann = Browser(gateway, world, "ann")
        url = await begun(ann)
        for name, value in (("scopes", ["mcp", "admin"]), ("names", other.origin)):
            page = await ann.open(url)
            setattr(world, name, value)
            asked = await ann.press(url, page)
            assert "not what the page said before" in asked
            assert "0;url=" not in asked
        assert f"127.0.0.1:{other.port}" in asked
        other.says = {"authorization_endpoint": f"{world.origin}/authorize"}
        asked = await ann.press(url, asked)
        assert "not what the page said before" in asked
        said = f"<dt>Sign in at</dt><dd>127.0.0.1:{world.port}</dd><dt>Accounts of</dt><dd>127.0.0.1:{other.port}</dd>"
        assert said in asked
        assert "0;url=" in await ann.press(url, asked)


async def test_5_nobody_is_sent_to_sign_in_at_a_name_that_is_not_what_it_looks_like(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        ann = Browser(gateway, world, "ann")
        world.says = {"authorization_endpoint": "https://g\N{CYRILLIC SMALL LETTER O}ogle.com/in"}
        page = await ann.open(await begun(ann))
        assert "its authorization_endpoint is no web address" in page
        assert "Sign in at" not in page


async def test_5_a_form_that_one_user_has_left_open_does_nothing_for_the_next(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        ann, bob = Browser(gateway, world, "ann"), Browser(gateway, world, "bob")
        assert "Connected" in await bob.connect(await begun(bob))
        await ann.press("/connect", await ann.open("/connect"), token=TOKENS["ann"])
        left = await ann.open("/connect")
        sealed = SEALER.unseal(ann.cookies["stagedoor"], b"browser")
        assert sealed is not None
        over = json.dumps(json.loads(sealed) | {"until": 0.0}).encode()
        ann.cookies["stagedoor"] = SEALER.seal(over, b"browser")
        await ann.press("/connect", await ann.open("/connect"), token=TOKENS["bob"])
        assert "Disconnect: a" in await ann.open("/connect")
        assert "not of this browser" in await ann.press("/connect", left, backend="a", action="disconnect")
        assert "Disconnect: a" in await ann.open("/connect")


async def begun(browser: Browser) -> str:
    """The page of a flow that this user has begun himself."""
    await browser.press("/connect", await browser.open("/connect"), token=TOKENS[browser.user])
    page = await browser.press("/connect", await browser.open("/connect"))
    return str(re.findall(r'content="0;url=([^"]*)"', page)[0])


async def test_one_who_opens_pages_without_end_leaves_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as (world, gateway):
        browsers = [Browser(gateway, world, name) for name in TOKENS]
        pages_of = [await begun(browser) for browser in browsers]
        asking: list[str] = []

        async def slow(self: Discovery, url: str, *_: Any) -> Any:
            asking.append(url)
            await trio.sleep_forever()

        monkeypatch.setattr(Discovery, "provider", slow)
        async with trio.open_nursery() as opening:
            for _ in range(3 * ASKING):
                opening.start_soon(browsers[0].open, pages_of[0])
            with trio.fail_after(PATIENCE):
                while len(asking) < ASKING:
                    await trio.sleep(0.01)
                opening.start_soon(browsers[1].open, pages_of[1])
                while len(asking) < ASKING + 1:
                    await trio.sleep(0.01)
            await trio.sleep(0.1)
            assert len(asking) == ASKING + 1
            opening.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_that_can_open_no_page_is_told_the_address(era: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        if era == "modern":
            result = await gateway.modern(token=TOKENS["ann"]).start_call("a__whoami").complete()
        else:
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            result = await client.call("a__whoami")
        assert result["isError"] is True
        assert "http://127.0.0.1:8080/connect" in text_of(result)
        assert world.calls() == []


async def test_5_a_link_of_another_user_connects_nobody(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    """Attack 5."""
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        call = client.start_call("a__whoami")
        url = (await call.message("elicitation/create"))["params"]["url"]
        bob = Browser(gateway, world, "bob")
        page = await bob.press(url, await bob.open(url), token=TOKENS["bob"])
        page = await bob.open(url)
        assert bob.pages[-1][0] == 403
        assert "form" not in page
        # Ann begins, and Bob gets the address of the sign-in, or what comes of it.
        ann = Browser(gateway, world, "ann")
        await ann.press(url, await ann.open(url), token=TOKENS["ann"])
        onward = await ann.press(url, await ann.open(url))
        back = await Browser(gateway, world, "bob").sign_in(onward)
        await bob.open(back)
        assert bob.pages[-1][0] == 400
        await ann.open(back)
        assert ann.pages[-1][0] == 400, "a state is good once"
        assert world.counts["/token"] == 0
        refused = [line for line in gateway.trail.of("connect") if line["outcome"] in ("refused", "failed")]
        assert [(line["outcome"], line["reason"]) for line in refused] == [
            ("refused", "other_principal"),
            ("failed", "other_browser"),
            ("failed", "bad_state"),
        ]
        assert (refused[0]["account"], refused[0]["server"]) == ("ann", "a")


async def test_14_pages_show_nothing_unescaped_and_load_nothing(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        browser = Browser(gateway, world, "ann")
        page = await browser.open("/connect/callback?state=x&error=%3Cscript%3E&error_description=%3Cb%3E")
        status, headers, _ = browser.pages[-1]
        assert status == 400
        assert "<script" not in page
        assert headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        )
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        await browser.open("/connect/nothing")
        assert browser.pages[-1][0] == 404


@pytest.mark.parametrize("iss", ["https://evil.example", "{}/", "", None])
async def test_8_an_answer_of_another_issuer_is_never_redeemed(
    iss: str | None, tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """Attack 8: it names another one, the right one by other letters, nothing, or leaves out what it was to say."""
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        url = await flow_of(gateway, "ann")
        world.iss = iss is not None  # its metadata has said that it says it
        world.says = {"authorization_response_iss_parameter_supported": True}
        world.says_iss = iss.format(world.origin) if iss is not None else None
        last = await Browser(gateway, world, "ann").connect(url)
        assert world.counts["/authorize"] == 1
        assert world.counts["/token"] == 0
        assert "is connected" not in last


async def test_8_two_issuers_in_one_answer_are_not_none(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    """Where the right one has not said that it names itself."""
    async with opened(tmp_path, {"iss": False}, store=stores[0]) as (world, gateway):
        ann = Browser(gateway, world, "ann")
        url = await flow_of(gateway, "ann")
        await ann.press(url, await ann.open(url), token=TOKENS["ann"])
        back = await ann.sign_in(await ann.press(url, await ann.open(url)))
        assert "not of the authorization server" in await ann.open(f"{back}&iss={world.origin}&iss=https://other.test")
        assert world.counts["/token"] == 0


async def test_8_a_configured_client_is_of_the_first_issuer_that_its_server_names(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """With a secret or without: its answers come to the address of all such clients."""
    async with (
        open_oauth_world(iss=False) as other,
        opened(tmp_path, {"iss": False}, stores[0], clientId="pub") as (
            world,
            gateway,
        ),
    ):
        ann, bob = Browser(gateway, world, "ann"), Browser(gateway, other, "bob")
        assert "is connected" in await ann.connect(await flow_of(gateway, "ann"))
        world.names, other.resource = other.origin, world.url
        url = await flow_of(gateway, "bob")
        await bob.press(url, await bob.open(url), token=TOKENS["bob"])
        pressed = await bob.press(url, await bob.open(url))
        assert "configure `auth.issuer`" in pressed
        assert "0;url=" not in pressed
        assert other.counts["/authorize"] == other.counts["/token"] == 0


async def test_10_a_server_without_pkce_is_refused(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    """Attack 10."""
    async with opened(tmp_path, {"s256": False}, store=stores[0]) as (world, gateway):
        url = await flow_of(gateway, "ann")
        browser = Browser(gateway, world, "ann")
        await browser.press(url, await browser.open(url), token=TOKENS["ann"])
        assert "PKCE" in await browser.open(url)
        assert world.counts["/authorize"] == 0


async def test_10_a_sign_in_that_comes_late_or_twice_connects_nobody(
    tmp_path: Path, stores: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        url = await flow_of(gateway, "ann")
        ann = Browser(gateway, world, "ann")
        await ann.press(url, await ann.open(url), token=TOKENS["ann"])
        await ann.open(await ann.sign_in(await ann.press(url, await ann.open(url))) + "0")  # made up
        assert ann.pages[-1][0] == 400
        back = await ann.sign_in(await ann.press(url, await ann.open(url)))
        for status in (200, 400):
            await ann.open(back)
            assert (ann.pages[-1][0], world.counts["/token"]) == (status, 1)
        page = await ann.press("/connect", await ann.open("/connect"), backend="a", action="connect")
        (url,) = re.findall('content="0;url=([^"]*)"', page)
        page = await ann.open(url)
        monkeypatch.setattr("gateway.oauth.flows.LIVES", 0.2)
        late = await ann.sign_in(await ann.press(url, page))
        await trio.sleep(0.5)
        await ann.open(late)
        assert (ann.pages[-1][0], world.counts["/token"]) == (400, 1)


async def test_10_sign_ins_at_the_same_time_in_one_browser_are_not_mixed_up(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    async with open_oauth_world() as world:
        settings = configured(world)
        settings["mcpServers"]["b"] = settings["mcpServers"]["a"]
        async with open_authorized(settings, tmp_path, store=stores[0]) as gateway:
            ann = Browser(gateway, world, "ann")
            await ann.press("/connect", await ann.open("/connect"), token=TOKENS["ann"])
            backs = {}
            for which in ("a", "b", "again"):
                name = which[0]
                page = await ann.press("/connect", await ann.open("/connect"), backend=name, action="connect")
                (url,) = re.findall('content="0;url=([^"]*)"', page)
                backs[which] = await ann.sign_in(await ann.press(url, await ann.open(url)))
            code, other = (re.findall("code=([^&]*)", backs[which])[0] for which in ("a", "again"))
            await ann.open(backs["a"].replace(code, other))
            assert ann.pages[-1][0] == 400, "the code of another sign-in"
            assert "account at b is connected" in await ann.open(backs["b"])
            assert (await ann.open("/connect")).count("– connected") == 1


async def flow_of(gateway: Running, user: str) -> str:
    """The address of the page for this user."""
    client = gateway.legacy(token=TOKENS[user], capabilities=URL_MODE)
    await client.connect()
    call = client.start_call("a__whoami")
    asked = await call.message("elicitation/create")
    url: str = asked["params"]["url"]
    return url


async def test_users_see_their_own_accounts_and_never_anothers(tmp_path: Path) -> None:
    """Attack 1, small."""
    async with opened(tmp_path) as (world, gateway):
        for user in TOKENS:
            await Browser(gateway, world, user).connect(await flow_of(gateway, user))
        clients = {}
        for user, token in TOKENS.items():
            clients[user] = gateway.legacy(token=token)
            await clients[user].connect()
        for _ in range(5):
            for user, client in clients.items():
                assert user_of(await client.call("a__whoami")) == user
                assert user_of(await gateway.modern(token=TOKENS[user]).start_call("a__whoami").complete()) == user
        assert "A" * 32 not in repr(world.asked)


async def test_13_a_refresh_happens_once_for_many_calls_and_the_new_pair_is_kept(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        clients = [gateway.legacy(token=TOKENS["ann"]) for _ in range(4)]
        for client in clients:
            await client.connect()
            await client.call("a__whoami")
        for _ in range(2):
            world.forget_tokens()
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(client.call, "a__whoami")
        assert world.counts["refreshed"] == 2
        assert world.counts["reuse"] == 0
        assert told(gateway).count(("token.refresh", "")) == 2
        [first, _] = gateway.trail.of("token.refresh")
        assert (first["server"], first["account"], first["iss"]) == ("a", "ann", world.origin)


async def test_an_operator_says_what_an_authorization_server_wants_besides(tmp_path: Path) -> None:
    """Where its metadata is, what else its page is told, and that it knows no resources."""
    async with open_oauth_world(hides=True) as world:
        more = {"access_type": "offline", "prompt": "select_account consent"}
        said = {"metadataUrl": f"{world.origin}/somewhere", "authorizeParameters": more, "omitResource": True}
        async with open_authorized(configured(world, **said), tmp_path) as gateway:
            await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            world.forget_tokens()
            assert user_of(await client.call("a__whoami")) == "ann"
            signed_in = next(asked for asked in world.asked if asked.path == "/authorize").query
            assert {name: signed_in.get(name) for name in more} == more
            forms = [signed_in, *(asked.form for asked in world.asked if asked.path == "/token")]
            assert [form.get("grant_type") for form in forms] == [None, "authorization_code", "refresh_token"]
            assert not any("resource" in form for form in forms)


async def test_13_an_issuer_that_is_away_for_an_hour_ends_no_account(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    async with opened(tmp_path, {"lives": 3700.0}, store=stores[0]) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"])
        await client.connect()
        world.token_status = 503
        gateway.pass_time(3600)  # it is time for another token, and the old one is still good
        assert user_of(await client.call("a__whoami")) == "ann"
        assert world.counts["/token"] >= 2
        world.forget_tokens()
        for _ in range(2):
            refused = await client.refused("tools/call", {"name": "a__whoami", "arguments": {}})
            assert refused.data["reason"] == "auth_unavailable"
        world.token_status = 200
        assert user_of(await client.call("a__whoami")) == "ann"
        assert world.counts["/authorize"] == 1


async def test_13_an_account_that_its_issuer_ends_is_connected_again_by_the_next_call(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    async with opened(tmp_path, store=stores[0]) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        await client.call("a__whoami")
        world.forget_tokens()
        world.token_status = 503
        refused = await client.refused("tools/call", {"name": "a__whoami", "arguments": {}})
        assert refused.data["reason"] == "auth_unavailable"
        world.token_status = 200
        world.refresh.clear()
        call = client.start_call("a__whoami")
        asked = await call.message("elicitation/create")
        await client.answer(asked, {"action": "accept"})
        await Browser(gateway, world, "ann").connect(asked["params"]["url"])
        assert user_of(await call.result()) == "ann"
        assert ("token.refused", "invalid_grant") in told(gateway)


async def test_a_user_disconnects_on_the_page_and_his_tokens_are_revoked(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        browser = Browser(gateway, world, "ann")
        await browser.connect(await flow_of(gateway, "ann"))
        page = await browser.open("/connect")
        assert "connected" in page
        fields = {"backend": "a", "action": "disconnect"}
        await browser.press("/connect", page, **fields)
        assert any(token.startswith("refresh-ann") for token in world.revoked)
        assert "not connected" in await browser.open("/connect")
        assert told(gateway)[2:] == [
            ("token.revoke", "revoked"),
            ("token.revoke", "revoked"),
            ("connect", "disconnected"),
        ]


async def test_missing_rights_are_granted_on_the_page_and_the_call_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path, {"needs": {"admin": "admin"}}) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        call = client.start_call("a__admin")
        asked = await call.message("elicitation/create")
        await client.answer(asked, {"action": "accept"})
        await Browser(gateway, world, "ann").connect(asked["params"]["url"])
        assert user_of(await call.result()) == "ann"
        scopes = [a.query["scope"] for a in world.asked if a.path == "/authorize"]
        assert scopes == ["mcp", "mcp admin"]


async def test_however_many_calls_need_the_same_rights_each_leads_to_the_page(tmp_path: Path) -> None:
    async with opened(tmp_path, {"needs": {"admin": "admin"}}) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        calls = [client.start_call("a__admin") for _ in range(5)]
        asked = [await call.message("elicitation/create") for call in calls]
        for question in asked:
            await client.answer(question, {"action": "accept"})
        await Browser(gateway, world, "ann").connect(asked[-1]["params"]["url"])
        assert [user_of(await call.result()) for call in calls] == ["ann"] * 5


async def test_rights_that_an_account_never_gets_are_not_asked_for_for_ever(tmp_path: Path) -> None:
    async with opened(tmp_path, {"needs": {"admin": "admin"}}) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        world.withheld = "admin"
        call = client.start_call("a__admin")
        for _ in range(2):
            asked = await call.message("elicitation/create")
            await client.answer(asked, {"action": "accept"})
            await Browser(gateway, world, "ann").connect(asked["params"]["url"])
        result = await call.result()
        assert (result["isError"], "has not the rights" in text_of(result)) == (True, True), "a model can read that"
        modern = gateway.modern("/mcp/a", token=TOKENS["ann"], capabilities=URL_MODE)
        result = await modern.start_call("admin").complete()
        assert (result["isError"], "has not the rights" in text_of(result)) == (True, True)


async def test_1_a_thousand_interleaved_calls_of_twenty_users_never_meet(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """Attack 1: two replicas, both eras, both stores, tokens that end in the middle."""
    users = {f"user{n}": f"{n:02d}" * 16 for n in range(20)}
    TOKENS.update(users)
    async with open_oauth_world() as world:
        settings = configured(world)
        settings["gateway"]["auth"]["tokens"] = users
        folders = [tmp_path / "1", tmp_path / "2"]
        for folder in folders:
            folder.mkdir()
        async with (
            open_authorized(settings, folders[0], store=stores[0]) as one,
            open_authorized(settings, folders[1], store=stores[1]) as other,
        ):
            seen: list[tuple[str, str]] = []

            async def play(number: int, user: str) -> None:
                gateway = (one, other)[number % 2]
                client = gateway.legacy(token=users[user])
                await client.connect()
                modern = (other, one)[number % 2].modern(token=users[user])
                for n in range(25):
                    seen.append((user, user_of(await client.call("a__whoami"))))
                    seen.append((user, user_of(await modern.start_call("a__whoami").complete())))
                    if n in (8, 16):
                        world.forget_tokens(user)

            for user in users:
                await Browser(one, world, user).connect(await flow_of(one, user))
            async with trio.open_nursery() as nursery:
                for number, user in enumerate(users):
                    nursery.start_soon(play, number, user)
            assert len(seen) == 1000
            assert [pair for pair in seen if pair[0] != pair[1]] == []
            assert world.counts["reuse"] == 0
            said = repr(world.asked)
            assert not any(token in said for token in users.values()), "attack 2"
            for gateway in (one, other):
                told = repr(gateway.log.events) + repr(gateway.metrics.numbers())
                assert "canary-" not in told
                assert "refresh-" not in told


async def test_a_key_that_a_user_gives_goes_with_his_calls_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, mode="key") as (world, gateway):
        world.access["anns-key"] = Granted("ann", "", "")
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        call = client.start_call("a__whoami")
        asked = await call.message("elicitation/create")
        await client.answer(asked, {"action": "accept"})
        url = asked["params"]["url"]
        browser = Browser(gateway, world, "ann")
        await browser.press(url, await browser.open(url), token=TOKENS["ann"])
        assert "is connected" in await browser.press(url, await browser.open(url), key="anns-key")
        assert user_of(await call.result()) == "ann"
        bob = gateway.legacy(token=TOKENS["bob"])
        await bob.connect()
        assert (await bob.call("a__whoami"))["isError"] is True
        assert world.counts["/token"] == 0
        assert "anns-key" not in repr(gateway.log.events)
        assert told(gateway) == [("connect", "connected")]
        assert "anns-key" not in json.dumps(gateway.trail.lines)


async def test_lists_that_the_operator_pays_for_are_shown_and_never_called_with(tmp_path: Path) -> None:
    async with (
        open_oauth_world() as world,
        open_authorized(configured(world, catalog="the-catalog-token"), tmp_path) as gateway,
    ):
        world.access["the-catalog-token"] = Granted("catalog", "", "")
        with trio.fail_after(PATIENCE):
            names: set[str] = set()
            while "a__of_catalog" not in names:
                client = gateway.legacy(token=TOKENS["ann"])
                await client.connect()
                names = {tool["name"] for tool in (await client.request("tools/list"))["tools"]}
                await trio.sleep(0.2)
        assert (await client.call("a__whoami"))["isError"] is True
        assert "the-catalog-token" not in [asked.token for asked in world.calls()]
        assert world.counts["/token"] == 0


async def test_1_another_server_that_takes_over_a_name_finds_no_account(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    async with open_oauth_world() as world, open_oauth_world() as thief:
        folder = tmp_path / "2"
        folder.mkdir()
        async with open_authorized(configured(world), tmp_path, store=stores[0]) as gateway:
            await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        async with open_authorized(configured(thief), folder, store=stores[1]) as gateway:
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            assert (await client.call("a__whoami"))["isError"] is True
        assert "canary-" not in repr(thief.asked)
        assert "refresh-" not in repr(thief.asked)


async def test_a_server_that_only_says_that_an_account_is_missing_is_believed_by_nobody(tmp_path: Path) -> None:
    """What is ours to say, a server can't: else it could hold calls, or have one run twice."""
    async with opened(tmp_path) as (world, gateway):
        await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
        client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
        await client.connect()
        world.lies = True
        refused = await client.refused("tools/call", {"name": "a__whoami", "arguments": {}})
        assert refused.data is None
        assert len(world.calls()) == 1


async def test_an_operator_sees_accounts_ends_them_and_seals_them_anew(tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(3)]
    for folder in folders:
        folder.mkdir()
    store = MemoryStore(Limits(), trio.current_time)
    old, new = b"o" * 32, b"n" * 32
    async with open_oauth_world() as world:
        async with open_authorized(configured(world), folders[0], store=store, sealer=AesSealer([old])) as gateway:
            for user in TOKENS_OF_TWO:
                await Browser(gateway, world, user).connect(await flow_of(gateway, user))
            status, told = await gateway.accounts("accounts")
            assert status == 200
            assert [(a["principal"], a["server"], a["used"]) for a in told["accounts"]] == [
                ("ann", "a", True),
                ("bob", "a", True),
            ]
            assert not any(token in repr(told) for token in (*world.access, *world.refresh))
        async with open_authorized(configured(world), folders[1], store=store, sealer=AesSealer([new, old])) as gateway:
            told = (await gateway.accounts("rewrap"))[1]
            assert told == {"rewrapped": 2, "unreadable": 0, "clients": 1, "more": False}
        async with open_authorized(configured(world), folders[2], store=store, sealer=AesSealer([new])) as gateway:
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            assert user_of(await client.call("a__whoami")) == "ann"
            done = await gateway.accounts("accounts-disconnect", principal="ann", server="")
            assert done == (200, {"disconnected": 1, "more": False})
            assert any(token.startswith("refresh-ann") for token in world.revoked)
            assert (await client.call("a__whoami"))["isError"] is True
            left = (await gateway.accounts("accounts"))[1]["accounts"]
            assert [account["principal"] for account in left] == ["bob"]
            await Browser(gateway, world, "ann").connect(await flow_of(gateway, "ann"))
            registered = [asked for asked in world.asked if asked.path == "/register"]
            assert len(registered) == 1  # under the old key
        async with open_authorized(configured(world), folders[0], store=store, sealer=AesSealer([old])) as gateway:
            told = (await gateway.accounts("rewrap"))[1]
            assert told == {"rewrapped": 0, "unreadable": 2, "clients": 0, "more": False}


@pytest.mark.parametrize("kind", ["http", "ws"])
async def test_an_account_that_is_gone_is_used_nowhere_after_seconds(kind: str, tmp_path: Path) -> None:
    """On another replica too, where nothing has asked the shelf since."""
    store = MemoryStore(Limits(), trio.current_time)
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    async with open_oauth_world() as world:
        settings = configured(world)
        if kind == "ws":
            settings["mcpServers"]["a"]["url"] = world.url.replace("http:", "ws:")
        async with (
            open_authorized(settings, folders[0], store=store) as one,
            open_authorized(settings, folders[1], store=store.beside()) as other,
        ):
            browser = Browser(one, world, "ann")
            await browser.connect(await flow_of(one, "ann"))
            client = other.legacy(token=TOKENS["ann"])
            await client.connect()
            assert user_of(await client.call("a__whoami")) == "ann"
            await browser.press("/connect", await browser.open("/connect"), backend="a", action="disconnect")
            spec = other.actors.services.table.value.backends["a"]
            with trio.fail_after(PATIENCE):
                while (known := other.authorizing.authorization.known(spec, "ann")) is None or known.tag:
                    await trio.sleep(0.05)
                while world.open_sockets:
                    await trio.sleep(0.05)
            before = len(world.calls())
            assert (await client.call("a__whoami"))["isError"] is True
            assert len(world.calls()) == before


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_who_has_no_account_at_the_one_server_of_his_endpoint_hears_where_to_connect_it(
    kind: str, tmp_path: Path
) -> None:
    """Before the handshake nobody can be asked anything: the answer says it."""
    async with opened(tmp_path, {"eras": kind}) as (world, gateway):
        client = gateway.legacy("/mcp/a", token=TOKENS["ann"], capabilities=URL_MODE)
        with pytest.raises(RpcError) as refused:
            await client.connect()
        assert refused.value.data["url"] == "http://127.0.0.1:8080/connect"
        assert refused.value.message.count("Internal error") == 1
        modern = gateway.modern("/mcp/a", token=TOKENS["ann"], capabilities=URL_MODE)
        call = modern.start_call("whoami")
        required = await call.required()
        ((key, request),) = required["inputRequests"].items()
        await Browser(gateway, world, "ann").connect(request["params"]["url"])
        assert user_of(await modern.retry(call, required, {key: {"action": "accept"}}).complete()) == "ann"
        client = gateway.legacy("/mcp/a", token=TOKENS["ann"])
        await client.connect()
        assert user_of(await client.call("whoami")) == "ann"
        listed = await client.request("tools/list")
        assert {tool["name"] for tool in listed["tools"]} == {"whoami", "of_ann"}


@pytest.mark.parametrize(("era", "name"), [("legacy", "wire"), ("modern", "modern-wire")])
async def test_the_page_names_the_client_that_asks(era: str, name: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, gateway):
        if era == "legacy":
            url = await flow_of(gateway, "ann")
        else:
            modern = gateway.modern(token=TOKENS["ann"], capabilities=URL_MODE)
            required = await modern.start_call("a__whoami").required()
            url = next(iter(required["inputRequests"].values()))["params"]["url"]
        browser = Browser(gateway, world, "ann")
        await browser.press(url, await browser.open(url), token=TOKENS["ann"])
        assert f"<dt>Asked for by</dt><dd>{name} (as it calls itself)</dd>" in await browser.open(url)


def test_14_nothing_that_somebody_says_is_markup() -> None:
    said = '<script>x</script>"&'
    entry = pages.Entry(said, said, any=True)
    shown = pages.facts([(said, said)]) + pages.text(said) + pages.note(said) + pages.link(said, said)
    shown += (
        pages.accounts([entry], said, said) + pages.secret_field(said, said) + pages.page(said, onward=said).decode()
    )
    assert "<script" not in shown
    assert said[-2:] not in re.sub(r'="[^"]*"', "", shown)


async def test_the_page_of_accounts_shows_what_the_rules_show(tmp_path: Path) -> None:
    async with open_oauth_world() as world:
        settings = configured(world)
        settings["mcpServers"]["hidden"] = settings["mcpServers"]["a"]
        tokens = {"ann": {"token": TOKENS["ann"], "groups": ["dev"]}, "bob": TOKENS["bob"]}
        settings["gateway"] = {
            "auth": {"tokens": tokens},
            "policy": [
                {"who": {"groups": ["dev"]}, "allow": ["*:*"]},
                {"who": {"principals": ["bob"]}, "allow": ["a:*"]},
            ],
        }
        async with open_authorized(settings, tmp_path) as gateway:
            for user, names in (("ann", ["a", "hidden"]), ("bob", ["a"])):
                browser = Browser(gateway, world, user)
                await browser.press("/connect", await browser.open("/connect"), token=TOKENS[user])
                page = await browser.open("/connect")
                assert re.findall(r"<strong>(\w+)</strong>", page) == names
                if user == "bob":
                    await browser.press("/connect", page, backend="hidden", action="connect")
                    assert browser.pages[-1][0] == 400


async def nobody(token: str) -> None:
    """Whose a token is."""


async def test_behind_a_login_proxy_the_page_shows_what_is_given_to_the_groups_it_names(tmp_path: Path) -> None:
    async with open_oauth_world() as world:
        settings = configured(world)
        settings["mcpServers"]["hidden"] = settings["mcpServers"]["a"]
        proxy = {"mode": "proxy", "header": "X-User", "from": ["127.0.0.0/8"], "groups": "X-Groups"}
        settings["gateway"] = {
            "auth": {"tokens": {"ann": {"token": TOKENS["ann"], "groups": ["dev"]}}, "browser": proxy},
            "policy": [{"who": {"groups": ["dev"]}, "allow": ["*:*"]}, {"allow": ["a:*"]}],
        }
        async with open_authorized(settings, tmp_path) as gateway:
            table = lambda: gateway.settings.table  # noqa: E731
            served = gateway.authorizing.pages(lambda: gateway.settings, ADDRESS, table, nobody, lambda asker: False)
            for user, groups, names in (
                ("ann", "", ["a", "hidden"]),  # as it is configured
                ("bob", "", ["a"]),
                ("bob", "ops, dev", ["a", "hidden"]),
                ("14:https://i.test:3:bob", "dev", ["a", "hidden"]),
            ):
                headers = {"x-user": user, "x-groups": groups}
                page = await served("GET", "/connect", "", headers, b"", "127.0.0.1")
                assert re.findall(r"<strong>(\w+)</strong>", page.body.decode()) == names, (user, groups)


async def test_all_pages_are_below_the_path_of_the_public_url(tmp_path: Path) -> None:
    async with open_oauth_world() as world:
        settings = configured(world)
        settings["gateway"]["publicUrl"] = "http://127.0.0.1:8080/tools/gate"
        async with open_authorized(settings, tmp_path) as gateway:
            client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
            await client.connect()
            call = client.start_call("a__whoami")
            asked = await call.message("elicitation/create")
            assert asked["params"]["url"].startswith("http://127.0.0.1:8080/tools/gate/connect/")
            await client.answer(asked, {"action": "accept"})
            browser = Browser(gateway, world, "ann")
            assert "is connected" in await browser.connect(asked["params"]["url"])
            assert user_of(await call.result()) == "ann"
            page = await browser.open("/tools/gate/connect")
            links = re.findall(r'(?:href|action)="([^"]*)"', page)
            assert links
            assert all(link.startswith("/tools/gate/connect") for link in links)
            page = await browser.press("/tools/gate/connect", page, backend="a", action="disconnect")
            assert 'content="0;url=/tools/gate/connect"' in page
            await browser.open("/tools/gate/connect/style.css")
            assert browser.pages[-1][0] == 200
            said = [a.query["redirect_uri"] for a in world.asked if a.path == "/authorize"]
            assert said == ["http://127.0.0.1:8080/tools/gate/connect/callback"]


async def test_13_a_storm_of_refreshes_on_two_replicas_uses_each_token_once(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """Attack 13: a rotating token that is used twice ends the account; an issuer that ends it ends no session; tokens
    that are good go on while it is away."""
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        folder.mkdir()
    async with (
        open_oauth_world() as world,
        open_authorized(configured(world), folders[0], store=stores[0]) as one,
        open_authorized(configured(world), folders[1], store=stores[1]) as other,
    ):
        browser = Browser(one, world, "ann")
        await browser.connect(await flow_of(one, "ann"))
        clients = [gateway.legacy(token=TOKENS["ann"]) for gateway in (one, other) for _ in range(4)]
        for client in clients:
            await client.connect()
            await client.call("a__whoami")
        for _ in range(3):
            world.forget_tokens()
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(client.call, "a__whoami")
        assert world.counts["reuse"] == 0
        assert 3 <= world.counts["refreshed"] <= 6, "a replica may hear of the new pair by being refused once more"
        world.token_status = 503
        for client in clients:
            assert user_of(await client.call("a__whoami")) == "ann"
        world.token_status = 200
        world.refresh.clear()
        world.forget_tokens()
        for client in clients:
            assert (await client.call("a__whoami"))["isError"] is True
        await browser.press("/connect", await browser.open("/connect"), backend="a", action="connect")
        await browser.connect(await flow_of(one, "ann"))
        await until(lambda: other.authorizing.authorization.known(spec_of(other), "ann").connected)
        for client in clients:
            assert user_of(await client.call("a__whoami")) == "ann", "its session lives"


def spec_of(gateway: Running) -> Any:
    return gateway.actors.services.table.value.backends["a"]


async def until(condition: Callable[[], Any]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.05)


@pytest.mark.parametrize("kind", ["sse", "ws"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_accounts_work_over_other_transports(kind: str, era: str, tmp_path: Path) -> None:
    async with open_oauth_world(eras="legacy", needs={"admin": "admin"}) as world:
        settings = configured(world)
        server = settings["mcpServers"]["a"]
        if kind == "sse":
            server |= {"url": f"{world.origin}/sse", "type": "sse"}
            world.resource = f"{world.origin}/sse"
        else:
            server["url"] = world.url.replace("http:", "ws:")
        async with open_authorized(settings, tmp_path) as gateway:
            browser = Browser(gateway, world, "ann")
            assert "is connected" in await browser.connect(await flow_of(gateway, "ann"))
            if era == "legacy":
                client = gateway.legacy(token=TOKENS["ann"])
                await client.connect()

                async def whoami() -> Any:
                    return await client.call("a__whoami")
            else:

                async def whoami() -> Any:
                    return await gateway.modern(token=TOKENS["ann"]).start_call("a__whoami").complete()

            assert user_of(await whoami()) == "ann"
            bob = gateway.legacy(token=TOKENS["bob"])
            await bob.connect()
            assert (await bob.call("a__whoami"))["isError"] is True
            # A POST is refused and made once more; a WebSocket that is open goes on with what it was opened with.
            if kind == "sse":
                world.forget_tokens()
                assert user_of(await whoami()) == "ann"
                assert world.counts["refreshed"] == 1
            assert {world.access[asked.token].user for asked in world.calls() if asked.token in world.access} == {"ann"}
            assert "A" * 32 not in repr(world.asked)


@pytest.mark.parametrize("kind", ["sse", "ws"])
async def test_the_gateway_itself_is_authorized_over_other_transports(kind: str, tmp_path: Path) -> None:
    async with open_oauth_world(eras="legacy") as world:
        settings = configured(world, mode="client_credentials", clientId="gw", clientSecret="gw secret")
        server = settings["mcpServers"]["a"]
        if kind == "sse":
            server |= {"url": f"{world.origin}/sse", "type": "sse"}
            world.resource = f"{world.origin}/sse"
        else:
            server["url"] = world.url.replace("http:", "ws:")
        async with open_authorized(settings, tmp_path) as gateway:
            client = gateway.legacy(token=TOKENS["ann"])
            await client.connect()
            assert user_of(await client.call("a__whoami")) == "itself"
            if kind == "sse":
                gateway.pass_time(60)
                world.forget_tokens()
                assert user_of(await client.call("a__whoami")) == "itself"
                assert world.counts["/token"] == 2
