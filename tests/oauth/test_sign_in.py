"""Browsers whose users sign in at the issuer of the gateway's own tokens, or stand behind a login proxy."""

import base64
import json
import re
import time
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from actors.ports import Asker, Failed, Principal
from actors.protocol.issuers import Issuer
from actors.protocol.rights import Rights, principal_id
from actors.protocol.table import Table
from gateway.oauth.connect import Connect, Login, Request
from gateway.oauth.discovery import Answer, Discovery
from gateway.oauth.errors import OAuthError
from gateway.oauth.flows import Flows
from gateway.oauth.grants import Described
from gateway.oauth.login import SignIn
from gateway.oauth.service import UpstreamAuthorization
from gateway.oauth.vault import Vault
from gateway.store.shelf import MemoryShelf
from tests.support.authorized import SEALER
from tests.support.store_calls import Lines

LOGIN = "https://login.example"
BASE = "https://gw.example"
DESCRIBED = Described(f"{BASE}/connect/client-metadata.json")


class Idp:
    """Answers like an OpenID provider; what its ID token says can be changed."""

    def __init__(self) -> None:
        self.status = 200
        self.claims: dict[str, Any] = {"iss": LOGIN, "sub": "ann", "aud": "pages", "exp": 2000}
        self.asked: list[str] = []

    async def __call__(self, method: str, url: str, **options: Any) -> Answer:
        self.asked.append(url)
        if url.endswith("/.well-known/oauth-authorization-server"):
            found = {"issuer": LOGIN, "authorization_endpoint": f"{LOGIN}/auth", "token_endpoint": f"{LOGIN}/token"}
            return Answer(200, json.dumps(found).encode())
        assert url == f"{LOGIN}/token"
        payload = base64.urlsafe_b64encode(json.dumps(self.claims).encode()).decode().rstrip("=")
        return Answer(self.status, json.dumps({"id_token": f"e30.{payload}.sig"}).encode())


class Watched(MemoryShelf):
    """Counts what is put there."""

    def __init__(self) -> None:
        super().__init__(lambda: 1000.0)
        self.puts = 0

    async def put(self, *place: Any, **how: Any) -> str | Failed:
        self.puts += 1
        return await super().put(*place, **how)


def sign_in(idp: Idp, shelf: MemoryShelf | None = None, wall: Callable[[], float] = lambda: 1000.0) -> SignIn:
    shelf = MemoryShelf(wall) if shelf is None else shelf
    return SignIn([Issuer(LOGIN)], "pages", None, f"{BASE}/connect/callback", shelf, SEALER, Discovery(idp), wall)


async def test_beginning_costs_the_store_nothing_and_the_issuer_one_look_for_many() -> None:
    idp, kept = Idp(), Watched()
    signing = sign_in(idp, kept)
    states = {await begun(signing, idp) for _ in range(20)}
    assert len(states) == 20
    assert max(map(len, states)) < 1000
    assert kept.puts == 0
    assert len(idp.asked) == 1


async def test_where_a_profile_tells_users_apart_it_is_asked_for() -> None:
    """Entra gives no `oid` without that."""
    shelf, wall = MemoryShelf(lambda: 1000.0), lambda: 1000.0
    for subject, scope in (((("sub",),), "openid"), ((("tid",), ("oid",)), "openid profile")):
        issuer = Issuer(LOGIN, subject=subject)
        signing = SignIn([issuer], "pages", None, f"{BASE}/connect/callback", shelf, SEALER, Discovery(Idp()), wall)
        url = await signing.begin(LOGIN, "browser", "/connect/x")
        assert dict(parse_qsl(urlsplit(url).query))["scope"] == scope


async def test_a_sign_in_that_took_too_long_is_over() -> None:
    idp, now = Idp(), [1000.0]
    signing = sign_in(idp, wall=lambda: now[0])
    state = await begun(signing, idp)
    now[0] += 601.0
    with pytest.raises(OAuthError):
        await signing.finish(state, "browser", {"code": "c"})
    assert f"{LOGIN}/token" not in idp.asked


async def test_what_nobody_has_sealed_is_no_sign_in() -> None:
    idp = Idp()
    signing = sign_in(idp)
    state = await begun(signing, idp)
    for other in ("in.", "in.x", f"in.{state}", state[:-4]):
        with pytest.raises(OAuthError):
            await signing.finish(other, "browser", {"code": "c"})
    assert f"{LOGIN}/token" not in idp.asked


async def begun(signing: SignIn, idp: Idp) -> str:
    """A sign-in that is under way: its state. The ID token gets its nonce."""
    url = await signing.begin(LOGIN, "browser", "/connect/x")
    query = dict(part.split("=", 1) for part in url.partition("?")[2].split("&"))
    assert query["scope"] == "openid"
    idp.claims.setdefault("nonce", query["nonce"])
    return query["state"]


async def test_who_signs_in_at_the_issuer_is_the_principal_of_its_tokens() -> None:
    idp = Idp()
    signing = sign_in(idp)
    state = await begun(signing, idp)
    assert signing.is_its(state)
    rights = Rights(LOGIN, "ann")
    assert await signing.finish(state, "browser", {"code": "c"}) == (principal_id(LOGIN, "ann"), rights, "/connect/x")
    with pytest.raises(OAuthError):
        await signing.finish(state, "browser", {"code": "c"})


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "other"},
        {"aud": "another"},
        {"aud": ["x"]},
        {"iss": f"{LOGIN}/"},
        {"exp": 900},
        {"sub": ""},
        {"azp": "x"},
    ],
)
async def test_an_id_token_that_is_not_of_this_sign_in_is_nobodys(claims: dict[str, Any]) -> None:
    idp = Idp()
    idp.claims |= claims
    signing = sign_in(idp)
    state = await begun(signing, idp)
    with pytest.raises(OAuthError):
        await signing.finish(state, "browser", {"code": "c"})


async def test_5_another_browser_can_not_finish_a_sign_in(stores: tuple[Any, Any]) -> None:
    idp = Idp()
    signing = sign_in(idp, stores[0].shelf)
    state = await begun(signing, idp)
    for browser in ("", "other"):
        with pytest.raises(OAuthError):
            await signing.finish(state, browser, {"code": "c"})
        state = await begun(signing, idp)
    assert f"{LOGIN}/token" not in idp.asked


def pages(
    nursery: Any,
    login: Login,
    revoked: Callable[[Asker], bool] = lambda asker: False,
    who: Callable[[str], Asker | None] = lambda token: None,
    signing: SignIn | None = None,
) -> Connect:
    shelf, idp = MemoryShelf(lambda: 1000.0), Idp()
    authorization: UpstreamAuthorization[object] = UpstreamAuthorization(
        shelf, SEALER, idp, lambda *_: object(), Lines(), nursery, lambda: 1000.0
    )
    flows = Flows(shelf, SEALER, Vault(shelf, SEALER), Discovery(idp), lambda: 1000.0, redirect_uri="", described=None)

    async def known(token: str) -> Asker | None:
        return who(token)

    table = lambda: Table({}, {})  # noqa: E731
    return Connect(BASE, DESCRIBED, login, flows, authorization, table, SEALER, known, signing, Lines(), revoked)


@pytest.mark.parametrize(
    ("status", "answer", "outcome", "then"),
    [
        (200, "code=c", "Thank you", "Your accounts"),
        (400, "code=c", "That did not work", "Sign in first"),
        (503, "code=c", "Not possible just now", "Sign in first"),
        (200, "error=access_denied", "That did not work", "Sign in first"),
    ],
)
async def test_10_an_answer_is_used_once_and_whoever_reloads_its_page_goes_on(
    status: int, answer: str, outcome: str, then: str, stores: tuple[Any, Any], nursery: Any
) -> None:
    idp = Idp()
    idp.status, idp.claims = status, idp.claims | {"exp": time.time() + 60}
    replicas = [sign_in(idp, store.shelf, time.time) for store in stores]
    first, second = (pages(nursery, Login("oidc"), signing=signing) for signing in replicas)
    cookie = ""

    async def seen(connect: Connect, path: str, query: str = "", form: dict[str, str] | None = None) -> list[str]:
        """The title of a page and where it leads, to a browser that keeps its cookie."""
        nonlocal cookie
        method, body = ("GET", b"") if form is None else ("POST", urlencode(form).encode())
        page = await connect(Request(method, path, query, {"cookie": cookie}, body))
        cookie = dict(page.headers).get("Set-Cookie", cookie).split(";")[0]
        text = unescape(page.body.decode())
        assert "referrer" in "".join(dict(page.headers)).lower()
        return [*re.findall("<h1>([^<]*)</h1>", text), *re.findall('(?:csrf" value="|content="0;url=)([^"]*)"', text)]

    _, csrf = await seen(first, "/connect")
    _, onward = await seen(first, "/connect", "", {"csrf": csrf, "action": "sign-in"})
    asked = dict(parse_qsl(urlsplit(onward).query))
    idp.claims["nonce"] = asked["nonce"]
    back = f"state={asked['state']}&{answer}"
    looked = await first(Request("HEAD", "/connect/callback", back, {"cookie": cookie}))
    assert (looked.status, len(idp.asked)) == (400, 1)
    assert (await seen(first, "/connect/callback", back))[0] == outcome
    for replica in (first, second):
        assert await seen(replica, "/connect/callback", f"state={asked['state']}&code=other") == ["Go on", "/connect"]
    assert (await seen(second, "/connect"))[0] == then
    assert idp.asked.count(f"{LOGIN}/token") == answer.count("code")


async def shown(connect: Connect) -> str:
    """A browser shows a token on the page: its cookie."""
    asks = await connect(Request("GET", "/connect"))
    cookie = dict(asks.headers)["Set-Cookie"].split(";")[0]
    (csrf,) = re.findall('name="csrf" value="([^"]*)"', asks.body.decode())
    form = urlencode({"csrf": csrf, "token": "t"}).encode()
    known = await connect(Request("POST", "/connect", "", {"cookie": cookie}, form))
    return dict(known.headers)["Set-Cookie"].split(";")[0]


async def test_whom_the_access_was_taken_from_is_not_there_until_he_comes_anew(nursery: Any) -> None:
    seen: list[Asker] = []

    def revoked(asker: Asker) -> bool:
        seen.append(asker)
        return asker.principal.name == "ann" and (asker.issued is None or asker.issued <= since)

    async def status(connect: Connect, headers: dict[str, str]) -> str:
        page = await connect(Request("GET", "/connect", "", headers, peer="10.1.2.3"))
        return re.findall("<h1>([^<]*)</h1>", page.body.decode())[0]

    since = 0.0
    rights = Rights("https://idp.test", "a", groups=frozenset({"dev"}))
    by_token = pages(nursery, Login("token"), revoked, lambda token: Asker(Principal("ann"), rights))
    cookie = await shown(by_token)
    assert await status(by_token, {"cookie": cookie}) == "Your accounts"
    assert (seen[-1].rights, seen[-1].principal.name) == (rights, "ann")
    since = time.time()
    assert await status(by_token, {"cookie": cookie}) == "Who are you?"
    static = {"ann": Rights("static:", "ann")}
    for login, title in (
        (Login("proxy", header="x-user", peers=("10.0.0.0/8",), rights=static), "Not for you"),
        (Login("proxy", header="x-user", peers=("10.0.0.0/8",)), "Your accounts"),
    ):
        assert await status(pages(nursery, login, revoked), {"x-user": "ann"}) == title, "a proxy has just seen him"


async def test_of_rights_that_are_too_large_for_a_cookie_it_is_known_whose_they_are(nursery: Any) -> None:
    """Access is taken from a user, and rules name a user; with `bindClient` the principal is not that alone."""
    seen: list[Asker] = []
    rights = Rights("https://idp.test", "a", "app", groups=frozenset(f"group {n}" for n in range(500)))
    who = Asker(Principal(f"{principal_id('https://idp.test', 'a')}:3:app"), rights)
    connect = pages(nursery, Login("token"), lambda asker: bool(seen.append(asker)), lambda token: who)
    cookie = await shown(connect)
    assert len(cookie) < 4096
    assert (await connect(Request("GET", "/connect", "", {"cookie": cookie}))).status == 200
    assert seen[-1].principal == who.principal
    assert seen[-1].rights == Rights("https://idp.test", "a", "app", partial=True)


async def test_a_login_proxy_is_believed_from_its_own_addresses_only(nursery: Any) -> None:
    login = Login("proxy", header="X-User", peers=("10.0.0.0/8",))
    connect = pages(nursery, login)
    headers = {"x-user": "ann"}
    assert (await connect(Request("GET", "/connect", "", headers, peer="10.1.2.3"))).status == 200
    for peer in ("192.0.2.1", "", "nonsense"):
        assert (await connect(Request("GET", "/connect", "", headers, peer=peer))).status == 403
    assert (await connect(Request("GET", "/connect", peer="10.1.2.3"))).status == 403


def test_a_login_proxy_names_users_as_rules_do() -> None:
    login = Login("proxy", issuers=("https://idp.test", "https://idp.test/b"))
    for said, principal in (
        ("ann", "ann"),
        ("https://idp.test#a#b", principal_id("https://idp.test", "a#b")),
        ("https://idp.test/b#c", principal_id("https://idp.test/b", "c")),
        ("https://other.test#c", "https://other.test#c"),
        ("", ""),
    ):
        assert login.named(said) == principal
    assert login.rights_of(login.named("https://idp.test#ann"), {}) == Rights("https://idp.test", "ann")


async def test_a_cookie_over_https_is_bound_to_the_host(nursery: Any) -> None:
    connect = pages(nursery, Login("token"))
    page = await connect(Request("GET", "/connect"))
    cookie = dict(page.headers)["Set-Cookie"]
    assert cookie.startswith("__Host-stagedoor=")
    assert all(part in cookie for part in ("Path=/", "HttpOnly", "SameSite=Lax", "Secure"))
    assert (await connect(Request("POST", "/connect", body=b"token=x&csrf=forged"))).status == 400
    metadata = json.loads((await connect(Request("GET", "/connect/client-metadata.json"))).body)
    assert metadata["client_id"] == f"{BASE}/connect/client-metadata.json"
    assert metadata["redirect_uris"] == [f"{BASE}/connect/callback"]
    assert metadata["token_endpoint_auth_method"] == "none"
