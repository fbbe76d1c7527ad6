"""Attacks on what users and servers trust a gateway with: on a whole one, with either store. The numbers are those of
docs/threat-model.md."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import trio

from gateway.config import load
from tests.oauth.test_user_accounts import TOKENS, URL_MODE, Browser, configured, flow_of, user_of
from tests.support.authorized import Running, open_authorized
from tests.support.modern_rules import CLIENT
from tests.support.modern_wire import ModernWire
from tests.support.oauth import Asked, Granted, open_oauth_world
from tests.support.patience import PATIENCE
from tests.support.wire_client import Exchange, WireClient

RESOURCE = "http://127.0.0.1:8080/mcp"
BOTH = pytest.mark.parametrize("era", ["legacy", "modern"])


@dataclass
class Chatty:
    """An edge to which each request brings all that a browser or a proxy might add."""

    http: Any
    more: Sequence[tuple[str, str]]

    def begin(self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> Exchange:
        exchange: Exchange = self.http.begin(method, path, [*headers, *self.more], body)
        return exchange


async def call(gateway: Running, era: str, tool: str, token: str, more: Sequence[tuple[str, str]] = ()) -> Any:
    """The result of one call by a client of its own."""
    http: Any = Chatty(gateway.http, more)
    if era == "modern":
        return await ModernWire(http, token=token).start_call(tool).complete()
    client = WireClient(http, token=token)
    await client.connect()
    return await client.call(tool)


def said_by(gateway: Running) -> str:
    """All that it has told its operator."""
    return repr((gateway.log.events, gateway.metrics.numbers(), gateway.trail.lines))


INBOUND = {
    "cookie": "session=inbound-cookie",
    "proxy-authorization": "Basic inbound-proxy",
    "x-api-key": "inbound-key",
    "x-forwarded-authorization": "Bearer inbound-forwarded",
}


@BOTH
async def test_2_what_a_client_is_known_by_goes_upstream_in_no_mode(
    era: str, tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    async with open_oauth_world() as world:
        settings = configured(world)
        world.access |= {name: Granted(name, "", "") for name in ("static-one", "anns-key")}
        settings["mcpServers"] |= {
            "static": {"url": world.url, "headers": {"Authorization": "Bearer static-one"}},
            "itself": {
                "url": world.url,
                "auth": {"mode": "client_credentials", "clientId": "gw", "clientSecret": "gw secret"},
            },
            "key": {"url": world.url, "auth": {"mode": "key"}},
        }
        async with open_authorized(settings, tmp_path, store=stores[0]) as gateway:
            ann = Browser(gateway, world, "ann")
            await ann.connect(await flow_of(gateway, "ann"))
            page = await ann.press("/connect", await ann.open("/connect"), backend="key", action="connect")
            (url,) = re.findall('content="0;url=([^"]*)"', page)
            assert "is connected" in await ann.press(url, await ann.open(url), key="anns-key")
            users = {"static": "static-one", "itself": "itself", "key": "anns-key", "a": "ann"}
            for server, user in users.items():
                result = await call(gateway, era, f"{server}__whoami", TOKENS["ann"], list(INBOUND.items()))
                assert user_of(result) == user
            said = repr(world.asked)
            assert all(token in said for token in ("static-one", "anns-key", "canary-itself", "canary-ann"))
            for place in (said, said_by(gateway)):
                assert TOKENS["ann"] not in place
                assert "inbound-" not in place


@BOTH
async def test_2_what_is_exchanged_is_seen_by_its_own_issuer_alone(
    era: str, tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    async with open_oauth_world() as world:
        given = {"mode": "exchange", "clientId": "gw", "clientSecret": "gw secret"}
        settings = {
            "mcpServers": {"a": {"url": world.url, "auth": given}},
            "gateway": {"auth": {"issuers": [{"issuer": world.origin}]}},
        }
        async with open_authorized(settings, tmp_path, store=stores[0]) as gateway:
            token = world.token_for(RESOURCE, "ann")
            assert user_of(await call(gateway, era, "a__whoami", token, list(INBOUND.items()))) == "ann"
            assert {asked.path for asked in world.asked if token in repr(asked)} == {"/token"}
            assert token not in said_by(gateway)
            assert "inbound-" not in repr(world.asked) + said_by(gateway)


# Addresses that lead inwards


class Names(trio.abc.HostnameResolver):
    """Every name is of this machine."""

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        await trio.lowlevel.checkpoint()
        return [(trio.socket.AF_INET, trio.socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise NotImplementedError


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, list[bytes]]]:
    """The port of a listener inside, and what has come there."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    came: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        came.append(b"")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1], came
        nursery.cancel_scope.cancel()


INSIDE = ("https://127.0.0.1:{}", "http://2130706433:{}", "https://[::ffff:127.0.0.1]:{}", "https://inside.test:{}")
DOCUMENTS = "/.well-known/oauth-protected-resource/mcp"
ISSUERS = "/.well-known/oauth-authorization-server/"


async def test_7_nothing_that_a_server_names_leads_inwards(tmp_path: Path, stores: tuple[Any, Any]) -> None:
    """Its metadata, its issuer, or the token endpoint of an issuer that an operator has named."""
    trio.socket.set_custom_hostname_resolver(Names())
    async with open_oauth_world() as world, listening() as (port, came):
        itself = {"mode": "client_credentials", "clientId": "gw", "clientSecret": "gw secret"}
        servers: dict[str, dict[str, Any]] = {}
        places: dict[str, str] = {}
        for number, place in enumerate(INSIDE):
            for kind in ("documents", "names", "token"):
                name = f"{kind}{number}"
                places[name] = f"{place.format(port)}/{name}"
                issuer = {"issuer": f"{world.origin}/{name}"} if kind == "token" else {}
                servers[name] = {"url": f"http://{name}.test:{world.port}/mcp", "auth": itself | issuer}
        plainly, asked_for = world.answer, set[str]()

        def answer(asked: Asked) -> Any:
            if asked.path.startswith(ISSUERS):
                name = asked.path.removeprefix(ISSUERS)
                world.says = {"issuer": f"{world.origin}/{name}", "token_endpoint": places[name]}
                asked_for.add(name)
                return 200, {"content-type": "application/json"}, json.dumps(world.metadata()).encode()
            name = asked.headers["host"].partition(".")[0]
            here = f"http://{asked.headers['host']}"
            world.resource = f"{here}/mcp"
            world.documents = places[name] if name.startswith("documents") else here + DOCUMENTS
            world.names = places[name] if name.startswith("names") else f"{world.origin}/{name}"
            asked_for.update([name] if asked.path == ("/mcp" if name.startswith("documents") else DOCUMENTS) else [])
            return plainly(asked)

        world.answer = answer  # type: ignore[method-assign]
        settings = {"mcpServers": servers, "gateway": {"auth": {"tokens": TOKENS}}}
        async with open_authorized(settings, tmp_path, store=stores[0]) as gateway:
            for name in servers:
                client = gateway.modern(f"/mcp/{name}", token=TOKENS["ann"])
                with trio.fail_after(PATIENCE):
                    error = await client.start_call("whoami").error()
                assert (error.data["reason"], error.data["executed"]) == ("auth_refused", "no"), name
            assert came == []
            assert asked_for == set(servers), "each has named its place"
            assert world.counts["/token"] == 0


# Issuers, browsers and pages


async def test_5_who_is_somebody_else_by_now_in_the_same_browser_is_not_connected(
    tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """Ann has begun, behind a login proxy, and Bob has the browser when her provider answers."""
    async with open_oauth_world() as world:
        settings = configured(world)
        settings["gateway"]["auth"]["browser"] = {"mode": "proxy", "header": "X-User", "from": ["127.0.0.0/8"]}
        async with open_authorized(settings, tmp_path, store=stores[0]) as gateway:
            gateway.http.app = from_here(gateway.http.app)
            browser = Browser(as_of(gateway, "ann"), world, "ann")
            url = await flow_of(gateway, "ann")
            back = await browser.sign_in(await browser.press(url, await browser.open(url)))
            browser.gateway = as_of(gateway, "bob")
            await browser.open(back)
            assert browser.pages[-1][0] == 400
            assert world.counts["/token"] == 0
            assert [line["reason"] for line in gateway.trail.of("connect")][:1] == ["other_principal"]


def from_here(app: Any) -> Any:
    """The app, as one whose clients are on this machine."""

    async def asked(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": ("127.0.0.1", 5)}, receive, send)

    return asked


def as_of(gateway: Running, user: str) -> Running:
    """The same gateway, behind a proxy that says who is there."""
    return replace(gateway, http=Chatty(gateway.http, [("x-user", user)]))  # type: ignore[arg-type]


@pytest.mark.parametrize("advertised", [True, False])
async def test_8_a_server_that_sends_users_to_an_honest_issuer_gets_no_code(
    advertised: bool, tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """The mix-up of RFC 9207: the page to sign in at is another issuer's, the token endpoint its own."""
    async with open_oauth_world() as honest, open_oauth_world() as hostile:
        hostile.says = {
            "authorization_endpoint": f"{honest.origin}/authorize",
            "authorization_response_iss_parameter_supported": advertised,
        }
        async with open_authorized(configured(hostile), tmp_path, store=stores[0]) as gateway:
            last = await Browser(gateway, honest, "ann").connect(await flow_of(gateway, "ann"))
            assert "is connected" not in last
            assert honest.counts["/authorize"] == 1
            (code,) = honest.codes
            assert code not in repr(hostile.asked)
            assert hostile.counts["/token"] == honest.counts["/token"] == 0


@pytest.mark.parametrize("named", ["gateway", "server", "server, since a reload"])
async def test_8_nobody_is_sent_to_a_known_issuer_for_the_tokens_of_another(
    named: str, tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """The same with an issuer that does not name itself in its answers: the hostile server has its client registered
    under the id that the gateway has at the honest one, and would get a code for that one, with its verifier."""
    async with open_oauth_world(iss=False) as honest, open_oauth_world(iss=False) as hostile:
        hostile.says = {"authorization_endpoint": f"{honest.origin}/authorize"}
        configuration = configured(hostile)
        h = {"url": honest.url, "auth": {"mode": "user", "issuer": honest.origin}}
        if named == "gateway":
            configuration["gateway"]["auth"] |= {"issuers": [{"issuer": honest.origin}], "browser": {"mode": "token"}}
        if named == "server":
            configuration["mcpServers"]["h"] = h
        async with open_authorized(configuration, tmp_path, store=stores[0]) as gateway:
            if named == "server, since a reload":
                configuration["mcpServers"]["h"] = h
                file = tmp_path / "stagedoor.json"
                file.write_text(json.dumps(configuration))
                gateway.actors.replace_table(load(file).settings.table)
            ann = Browser(gateway, honest, "ann")
            await ann.press("/connect", await ann.open("/connect"), token=TOKENS["ann"])
            page = await ann.press("/connect", await ann.open("/connect"), backend="a", action="connect")
            (url,) = re.findall(r'content="0;url=([^"]*)"', page)
            assert "sign-in of another issuer" in await ann.open(url)
            pressed = await ann.press(url, ann.pages[-3][2], action="connect")
            assert "0;url=" not in pressed
            assert honest.codes == {}
            assert hostile.counts["/token"] == hostile.counts["/register"] == 0


@pytest.mark.parametrize("client", ["configured", "registered"])
async def test_8_a_browser_that_is_sent_on_to_an_honest_issuer_brings_its_code_to_nobody_else(
    client: str, tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """The mix-up of RFC 9700, section 4.4: the hostile server has a sign-in of its own, which sends the browser on to
    the honest one as the gateway's client there. Neither names itself in its answers."""
    async with open_oauth_world(iss=False) as honest, open_oauth_world(iss=False) as hostile:
        configuration = configured(hostile)
        auth = {"mode": "user", "clientId": "gw", "clientSecret": "gw secret", "issuer": honest.origin}
        registered = {"mode": "user"}
        configuration["mcpServers"]["h"] = {"url": honest.url, "auth": auth if client == "configured" else registered}
        async with open_authorized(configuration, tmp_path, store=stores[0]) as gateway:
            ann = Browser(gateway, honest, "ann")
            await ann.press("/connect", await ann.open("/connect"), token=TOKENS["ann"])

            async def sent_on(server: str) -> str:
                page = await ann.press("/connect", await ann.open("/connect"), backend=server, action="connect")
                (url,) = re.findall(r'content="0;url=([^"]*)"', page)
                return await ann.press(url, await ann.open(url))

            assert "is connected" in await ann.come_back(await sent_on("h"))
            ours = next(asked.query for asked in honest.asked if asked.path == "/authorize")
            (onward,) = re.findall(r'content="0;url=([^"]*)"', await sent_on("a"))
            sent = dict(parse_qsl(urlsplit(unescape(onward)).query))
            sent |= {"client_id": ours["client_id"], "redirect_uri": ours["redirect_uri"]}
            back = await ann.sign_in(f'content="0;url={honest.origin}/authorize?{urlencode(sent)}"')
            assert "not of the authorization server that was asked" in await ann.open(back)
            assert hostile.counts["/token"] == 0
            ann.world = hostile
            assert "is connected" in await ann.come_back(await sent_on("a")), "by itself it may give accounts"


@pytest.mark.parametrize("named", ["gateway", "server", "its metadata"])
async def test_8_a_sign_in_that_is_elsewhere_is_that_of_its_issuer_alone(
    named: str, tmp_path: Path, stores: tuple[Any, Any]
) -> None:
    """The same where the page of the honest issuer is at another origin than its metadata."""
    async with (
        open_oauth_world(iss=False) as page,
        open_oauth_world(iss=False) as honest,
        open_oauth_world(iss=False) as hostile,
    ):
        honest.says = hostile.says = {"authorization_endpoint": f"{page.origin}/authorize"}
        configuration = configured(hostile)
        auth: dict[str, Any] = {"mode": "user"}
        if named == "gateway":
            configuration["gateway"]["auth"] |= {"issuers": [{"issuer": honest.origin}], "browser": {"mode": "token"}}
        elif named == "server":
            auth["issuer"] = honest.origin
        else:
            honest.hides = True
            auth["metadataUrl"] = f"{honest.origin}/somewhere"
        configuration["mcpServers"]["h"] = {"url": honest.url, "auth": auth}
        async with open_authorized(configuration, tmp_path, store=stores[0]) as gateway:
            ann = Browser(gateway, page, "ann")
            await ann.press("/connect", await ann.open("/connect"), token=TOKENS["ann"])

            async def offered(server: str) -> str:
                pressed = await ann.press("/connect", await ann.open("/connect"), backend=server, action="connect")
                (url,) = re.findall(r'content="0;url=([^"]*)"', pressed)
                return await ann.open(url)

            honest.broken = {"/.well-known/oauth-authorization-server", "/somewhere"}
            assert "asked where its users sign in" in await offered("a")
            honest.broken = set()
            assert "sign-in of another issuer" in await offered("a")
            assert "Sign in at" in await offered("h"), "its own page"
            assert "sign-in of another issuer" in await offered("a")
            asked = sum(honest.counts[path] for path in ("/.well-known/oauth-authorization-server", "/somewhere"))
            assert asked == 3, "one that failed, one that is kept, and one for its own users"
            assert page.codes == {}


async def test_an_issuer_that_the_operator_has_named_may_have_its_sign_in_elsewhere(tmp_path: Path) -> None:
    async with open_oauth_world() as login, open_oauth_world() as world:
        world.says = {"authorization_endpoint": f"{login.origin}/authorize"}
        configuration = configured(world, issuer=world.origin)
        configuration["gateway"]["auth"] |= {"issuers": [{"issuer": login.origin}], "browser": {"mode": "token"}}
        async with open_authorized(configuration, tmp_path) as gateway:
            ann = Browser(gateway, login, "ann")
            await ann.press("/connect", await ann.open("/connect"), token=TOKENS["ann"])
            page = await ann.press("/connect", await ann.open("/connect"), backend="a", action="connect")
            (url,) = re.findall(r'content="0;url=([^"]*)"', page)
            assert "Sign in at" in await ann.open(url)


def everything(value: Any, seen: set[int]) -> Iterator[str]:
    """All text and bytes that hang on a store in memory."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str | bytes | bytearray):
        yield value if isinstance(value, str) else bytes(value).decode("latin-1")
    elif isinstance(value, Mapping):
        for key in value:
            yield from everything(key, seen)
            yield from everything(value[key], seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from everything(one, seen)
    elif type(value).__module__.startswith(("gateway.store", "actors.ports")):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in (*getattr(value, "__dict__", ()), *slots):
            yield from everything(getattr(value, name, None), seen)


def kept(request: pytest.FixtureRequest, store: Any) -> str:
    """All that stands in the store."""
    if "redis" not in request.node.callspec.id:
        return "\n".join(everything(store, set()))
    with request.getfixturevalue("redis_server").client() as client:
        client.config_set("rdbcompression", "no")
        return "\n".join((key + (client.dump(key) or b"")).decode("latin-1") for key in client.scan_iter())


@BOTH
async def test_12_no_credential_of_a_user_is_in_what_is_said_or_kept(
    era: str, tmp_path: Path, stores: tuple[Any, Any], request: pytest.FixtureRequest
) -> None:
    """Through the life of an account: connected, used, renewed, refused, and in the middle of a sign-in."""
    async with open_oauth_world() as world:
        settings = configured(world, clientId="gw", clientSecret="gw secret")
        async with open_authorized(settings, tmp_path, store=stores[0]) as gateway:
            ann, bob = Browser(gateway, world, "ann"), Browser(gateway, world, "bob")
            await ann.connect(await flow_of(gateway, "ann"))
            url = await flow_of(gateway, "bob")
            await bob.press(url, await bob.open(url), token=TOKENS["bob"])
            await bob.press(url, await bob.open(url))  # on his way
            answers = [await call(gateway, era, "a__whoami", TOKENS["ann"])]
            world.forget_tokens()
            answers.append(await call(gateway, era, "a__whoami", TOKENS["ann"]))
            answers.append(await gateway.accounts("accounts"))
            stood = kept(request, stores[0])
            world.refresh.clear()
            world.forget_tokens()
            answers.append(await call(gateway, era, "a__whoami", TOKENS["ann"]))
            assert world.counts["refreshed"] == 1
            said = said_by(gateway) + repr(answers) + repr(ann.pages + bob.pages) + kept(request, stores[0])
            forms = [asked.form for asked in world.asked if asked.path == "/token"]
            verifiers = {form["code_verifier"] for form in forms if "code_verifier" in form}
            codes = {form["code"] for form in forms if "code" in form}
            assert len(verifiers) == len(codes) == 1
            secrets = {"gw secret", "gw+secret", "canary-", "refresh-ann", *TOKENS.values(), *verifiers, *codes}
            assert [secret for secret in secrets for place in (stood, said) if secret in place] == []
            assert len(stood) > 1000, "there is something in the store"
            assert "token.refresh" in said


SCRIPT = '<script>alert("x")</script>'


@BOTH
async def test_14_whatever_the_page_is_told_it_shows_as_text(era: str, tmp_path: Path, stores: tuple[Any, Any]) -> None:
    """By the client that asks, the user's browser, the server's issuer and the one who forged a link."""
    async with open_oauth_world() as world:
        world.scopes = [SCRIPT.replace('"', "'").replace(" ", "")]
        async with open_authorized(configured(world), tmp_path, store=stores[0]) as gateway:
            url = await asked_by_a_script(gateway, era)
            ann = Browser(gateway, world, "ann")
            await ann.press(url, await ann.open(url), token=TOKENS["ann"])
            back = await ann.sign_in(await ann.press(url, await ann.open(url)))
            refused = {"error": SCRIPT, "error_description": SCRIPT, "error_uri": "javascript:alert(1)"}
            await ann.open(re.sub("code=[^&]*", urlencode(refused), back))
            assert ann.pages[-1][0] == 400
            evil = urlencode(dict.fromkeys(("next", "redirect_uri", "url", "return_to"), "https://evil.test/"))
            forged = [("host", "localhost"), ("x-forwarded-host", "evil.test"), ("forwarded", "host=evil.test")]
            for path in ("/connect", f"/connect/callback?state={SCRIPT}", f"/connect/{SCRIPT}", urlsplit(url).path):
                target = path.replace("<", "%3C").replace(">", "%3E").replace('"', "%22")
                target += ("&" if "?" in target else "?") + evil
                exchange = Chatty(gateway.http, forged).begin("GET", target, [("cookie", cookie_of(ann))])
                text = (await exchange.whole()).decode()
                ann.pages.append((await exchange.head(), exchange.headers, text))
            shown = [text for _, _, text in ann.pages]
            assert any("&lt;script&gt;" in text for text in shown), "the client's name is on a page"
            for status, headers, text in ann.pages:
                assert "<script" not in text
                assert "javascript:" not in text
                assert "evil.test" not in text + repr(headers)
                assert "location" not in headers
                assert status in (200, 400, 404)
                assert "frame-ancestors 'none'" in headers["content-security-policy"]
                assert headers["x-frame-options"] == "DENY"


def cookie_of(browser: Browser) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


async def asked_by_a_script(gateway: Running, era: str) -> str:
    """The address of the page that a call of a client of this name leads to."""
    if era == "modern":
        modern = gateway.modern(token=TOKENS["ann"], capabilities=URL_MODE)
        message = modern.request_message("tools/call", {"name": "a__whoami", "arguments": {}})
        message["params"]["_meta"] |= {CLIENT: {"name": SCRIPT, "version": "1"}}
        body = json.loads(await modern.post(message).whole())
        found: str = next(iter(body["result"]["inputRequests"].values()))["params"]["url"]
        return found
    client = gateway.legacy(token=TOKENS["ann"], capabilities=URL_MODE)
    await client.initialize(clientInfo={"name": SCRIPT, "version": "1"})
    await client.notify("notifications/initialized")
    asked = await client.start_call("a__whoami").message("elicitation/create")
    url: str = asked["params"]["url"]
    return url
