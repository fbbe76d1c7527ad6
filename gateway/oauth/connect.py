"""What the pages do: who is there, what he may see, and what his buttons mean.

Before anybody is sent to an authorization server, the page has established that the user of this browser is the
principal whose account it will be (2026-07-28, client/elicitation, "Phishing"). How, says `Login`. The callback asks
again.
"""

import base64
import hashlib
import ipaddress
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Struct

from actors.ports import NO_RIGHTS, Asker, Log, Principal, Rights, Sealer
from actors.protocol.rights import STATIC, owner_of, principal_id
from actors.protocol.table import BackendSpec, Table
from gateway.oauth import grants, metadata, pages
from gateway.oauth.discovery import Provider
from gateway.oauth.errors import AwayError, OAuthError, shown
from gateway.oauth.flows import Flow, Flows, callback_of
from gateway.oauth.grants import Described
from gateway.oauth.login import AnsweredError, SignIn
from gateway.oauth.places import Places
from gateway.oauth.service import UpstreamAuthorization, url_of
from gateway.oauth.vault import AccountKey

SESSION: Final = 900.0
"""Seconds for which a browser is known to be a principal's."""
LONGEST_RIGHTS: Final = 1500
"""Bytes of the rights of who is there; a cookie may have 4096."""
ASKING: Final = 4
"""Pages of one principal for which authorization servers are asked at one time; further ones wait."""
CALLBACK: Final = "/connect/callback"
"""Where answers to sign-ins come, or below."""
_DESCRIBED: Final = re.compile(r"/connect/client-metadata(?:/([A-Za-z0-9_-]+))?\.json")
STATE: Final = 2048
"""Characters of a `state` that is looked at: that of a sign-in holds all that is to be known at its end."""
HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)


@dataclass(frozen=True, slots=True)
class Login:
    """How a browser shows whose it is. `oidc`: at the login of the principal's own issuer, with this client. `token`:
    by a form for the gateway's token. `proxy`: a login proxy at one of these addresses says so in this header, and in
    `groups` what groups he is in. `none`: it need not, since only this machine can reach the gateway. `rights`: of
    those with configured tokens."""

    mode: Literal["oidc", "token", "proxy", "none"] = "none"
    client_id: str = ""
    client_secret: str | None = field(default=None, repr=False)
    header: str = ""
    peers: tuple[str, ...] = ()
    anonymous: str = ""
    """Who everybody is where nobody has to say who he is; "": one has to."""
    groups: str = ""
    rights: Mapping[str, Rights] = field(default_factory=dict)
    issuers: tuple[str, ...] = ()

    def named(self, said: str) -> str:
        """Who that is whom a login proxy names as rules do: `ISSUER#SUBJECT`, or else by the principal's own name."""
        issuer = next((issuer for issuer in self.issuers if said.startswith(f"{issuer}#")), None)
        return said if issuer is None else principal_id(issuer, said[len(issuer) + 1 :])

    def rights_of(self, principal: str, headers: Mapping[str, str]) -> Rights:
        """What a login proxy, and the configuration, let somebody do whom the proxy names."""
        said = headers.get(self.groups.lower(), "") if self.groups else ""
        groups = frozenset(group for part in said.split(",") if (group := part.strip()))
        known = self.rights.get(principal)
        if known is None:
            known = Rights(*(owner_of(principal) or ("", "")))
        return msgspec.structs.replace(known, groups=known.groups | groups)


@dataclass(frozen=True, slots=True)
class Request:
    """One request for a page. Header names are lower-case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    peer: str = ""

    @property
    def form(self) -> dict[str, str]:
        return _pairs(self.body.decode("utf-8", "replace"))

    @property
    def answer(self) -> dict[str, str]:
        """What stands in the query. Of two values of one name neither counts, but that there was one (RFC 6749, section
        3.1: none may come twice)."""
        return _pairs(self.query, twice="")


@dataclass(frozen=True, slots=True)
class Page:
    """The answer."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    type: str = "text/html; charset=utf-8"


class _Browser(Struct, frozen=True):
    """What a browser keeps, sealed. `id`: which one it is; `nonce`: since it pressed *Connect*; `principal`: whose;
    `digest`: of the configured token by which that was shown."""

    id: str
    nonce: str = ""
    principal: str = ""
    until: float = 0.0
    rights: Rights = NO_RIGHTS
    digest: bytes = b""


def _nobody(asker: Asker) -> bool:
    return False


class Connect:
    """The pages for accounts, of one process. `who`: whose a token of the gateway's is; `revoked`: whether an operator
    has taken the access from him since."""

    def __init__(
        self,
        public_url: str,
        described: Described,
        login: Login,
        flows: Flows,
        authorization: UpstreamAuthorization[Any],
        table: Callable[[], Table],
        sealer: Sealer,
        who: Callable[[str], Awaitable[Asker | None]],
        sign_in: SignIn | None,
        log: Log,
        gone: Callable[[Asker], bool] = _nobody,
    ) -> None:
        self._gone = gone
        self._base = public_url
        self._described = described
        self._document: Mapping[str, Any] | None = None
        """What describes our client, once somebody has asked for it."""
        self._login = login
        self._flows = flows
        self._authorization = authorization
        self._table = table
        self._sealer = sealer
        self._who = who
        self._sign_in = sign_in
        self._asking = Places[str](ASKING)
        self._log = log
        self._prefix = urlsplit(public_url).path.rstrip("/")
        """Below which all pages are, where a proxy has put the gateway below a path."""
        self._told = authorization.vault.told
        self._secure = public_url.startswith("https://")
        self._cookie = "__Host-stagedoor" if self._secure else "stagedoor"

    async def __call__(self, request: Request) -> Page:
        """One page; whatever goes wrong is one too."""
        if self._prefix and request.path.startswith(f"{self._prefix}/"):
            request = replace(request, path=request.path.removeprefix(self._prefix))
        if request.path == pages.STYLE_PATH:
            return Page(200, pages.STYLE.encode(), HEADERS[1:4], "text/css; charset=utf-8")
        described = _DESCRIBED.fullmatch(request.path)
        if described is not None:
            return self._client_metadata(described[1])
        browser = self._seen_by_proxy(request, self._browser(request))
        try:
            if request.path in ("/connect", "/connect/"):
                return await self._list(request, browser)
            if request.path == CALLBACK or request.path.startswith(f"{CALLBACK}/"):
                return await self._callback(request, browser)
            return await self._flow(request, browser, request.path.removeprefix("/connect/"))
        except AnsweredError as error:
            # Without a cookie: the page that has the answer may have set one.
            link = pages.link(error.onward, "Go on", button=True)
            return Page(200, pages.page("Go on", link, onward=error.onward, root=self._prefix), HEADERS)
        except AwayError as error:
            words = pages.text(f"{error}. Try again in a while.")
            return self._page(503, "Not possible just now", words, self._all())
        except OAuthError as error:
            self._log.info("connect_failed", reason=error.reason, error=str(error))
            self._told.connect("failed", ip=request.peer, reason=error.reason)
            return self._page(400, "That did not work", pages.text(str(error)), self._all())

    def _client_metadata(self, named: str | None) -> Page:
        """What describes our client; `named`: to one issuer alone. An authorization server shows its users the name: a
        hostile one may have sent them on to it as its own client of ours."""
        if self._document is None:
            self._document = self._described.document(f"{self._base}{CALLBACK}")
        found = self._document
        if named is not None and self._described.each:
            issuer = _named_issuer(named)
            if issuer is None:
                return self._nothing()
            found = {
                **found,
                "client_id": self._described.at(issuer),
                "client_name": f"{found['client_name']}, for accounts of {urlsplit(issuer).netloc}",
                "redirect_uris": [callback_of(f"{self._base}{CALLBACK}", issuer)],
            }
        return Page(200, msgspec.json.encode(found), (("Cache-Control", "max-age=300"),), "application/json")

    # Browsers

    def _browser(self, request: Request) -> _Browser:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            found = None
        plain = self._sealer.unseal(found.value, b"browser") if found is not None else None
        try:
            browser = msgspec.json.decode(plain, type=_Browser) if plain is not None else None
        except msgspec.MsgspecError:
            browser = None
        return browser or _Browser(secrets.token_urlsafe(12))

    def _kept(self, browser: _Browser) -> tuple[str, str]:
        value = self._sealer.seal(msgspec.json.encode(browser), b"browser")
        secure = "; Secure" if self._secure else ""
        return ("Set-Cookie", f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600{secure}")

    def _csrf(self, browser: _Browser) -> str:
        return self._sealer.seal(_whose(browser), b"csrf")

    def _checked(self, request: Request, browser: _Browser) -> dict[str, str]:
        """The form, if it is of a page that this browser got from us, for who is there now: a page that the last user
        has left open is none of his."""
        given = request.form
        csrf = self._sealer.unseal(given.get("csrf", ""), b"csrf")
        if csrf is None or not secrets.compare_digest(csrf, _whose(browser)):
            raise OAuthError("bad_form", "this form is not of this browser, or too old: open the page again")
        return given

    # Who is there

    def _seen_by_proxy(self, request: Request, browser: _Browser) -> _Browser:
        """With whose it is, where a login proxy says so with each request."""
        if self._login.mode != "proxy":
            return browser
        return msgspec.structs.replace(browser, principal=self._said(request))

    def _said(self, request: Request) -> str:
        """Whom a login proxy names; "": nobody."""
        login = self._login
        said = request.headers.get(login.header.lower(), "") if _is_of(request.peer, login.peers) else ""
        return login.named(said)

    def _principal(self, request: Request, browser: _Browser, wanted: str | None) -> str | None:
        """Whose browser it is; None: nobody knows yet. `wanted`: whose it should be."""
        login = self._login
        if login.mode in ("none", "proxy"):
            principal = browser.principal if login.mode == "proxy" else login.anonymous or wanted or ""
            since = None if principal in login.rights else time.time()  # a configured token is out until it is restored
            return self._still(principal, login.rights_of(principal, request.headers), since)
        known = browser.principal if browser.until > time.time() else ""
        return self._still(known, browser.rights, browser.until - SESSION, browser.digest)

    def _still(self, principal: str, rights: Rights, since: float | None, digest: bytes = b"") -> str | None:
        """Whose browser it is, who showed it then; None: nobody's, or one whose access was taken away."""
        asker = Asker(Principal(principal), rights, since, digest)
        return principal if principal and not self._gone(asker) else None

    async def _ask_who(self, request: Request, browser: _Browser, wanted: str | None) -> Page:
        """The page that asks who is there, or what comes of its form."""
        login, here = self._login, self._at(request.path)
        if login.mode == "oidc" and self._sign_in is not None:
            issuer = self._sign_in.issuer_of(wanted)
            if request.method != "POST":
                host = urlsplit(issuer).netloc
                return self._with(
                    browser,
                    "Sign in first",
                    pages.text(f"Show who you are at {host}. Then you can connect your accounts."),
                    pages.form(here, self._csrf(browser), "Sign in", [("action", "sign-in")]),
                )
            self._checked(request, browser)
            browser = msgspec.structs.replace(browser, nonce=browser.nonce or secrets.token_urlsafe(16))
            onward = await self._sign_in.begin(issuer, browser.nonce, here)
            return self._onward(browser, "Sign in", onward)
        if login.mode == "token":
            if request.method == "POST" and "token" in request.form:
                asker = await self._who(self._checked(request, browser)["token"])
                if asker is not None:
                    known = _known(browser, asker.principal.name, asker.rights, asker.digest)
                    return self._onward(known, "Thank you", here)
                self._told.stranger(request.peer)
            tried = pages.text("This token is not known here.") if request.method == "POST" else ""
            field = pages.secret_field("token", "Your token for this gateway")
            words = pages.text("Show who you are, by the token that your MCP client uses.")
            form = pages.form(here, self._csrf(browser), "Go on", (), field)
            return self._with(browser, "Who are you?", tried, words, form, status=403 if tried else 200)
        return self._page(403, "Not for you", pages.text("It could not be said who you are."))

    # The list

    async def _list(self, request: Request, browser: _Browser) -> Page:
        principal = self._principal(request, browser, None)
        if principal is None:
            if self._login.mode == "none":
                words = "Here nobody has to say who he is: open the address that your client shows you."
                return self._page(200, "Your accounts", pages.text(words))
            return await self._ask_who(request, browser, None)
        if request.method == "POST" and "action" in request.form:
            return await self._act(request, browser, principal)
        seen = self._seen(request, principal, browser)
        found = [(spec, await self._entry(principal, spec)) for spec in self._personal()]
        entries = [entry for spec, entry in found if entry.any or seen(spec)]
        return self._with(browser, "Your accounts", pages.accounts(entries, self._csrf(browser), self._at("/connect")))

    def _seen(self, request: Request, principal: str, browser: _Browser) -> Callable[[BackendSpec], bool]:
        """Which servers the rules show to who is there, as far as it is known here what he may. Where he has an account
        he sees it all the same, so that he can end it."""
        policy = self._table().policy
        if policy is None or not policy.enforced:
            return lambda spec: True
        login, rights = self._login, browser.rights
        if login.mode == "proxy":
            rights = login.rights_of(principal, request.headers)
        elif rights.issuer == STATIC:
            rights = login.rights.get(principal, rights)  # by now another configuration may give others
        ruleset = policy.ruleset(principal, rights)
        return lambda spec: ruleset.sees(spec.name)

    def _personal(self) -> list[BackendSpec]:
        return [spec for spec in self._table().backends.values() if spec.connectable]

    async def _entry(self, principal: str, spec: BackendSpec) -> pages.Entry:
        account = self._authorization.account(spec, principal)
        await account.read()
        state = "connected" if account.connected else "has to be connected again" if account.tag else "not connected"
        return pages.Entry(spec.name, state, bool(account.tag))

    async def _act(self, request: Request, browser: _Browser, principal: str) -> Page:
        given = self._checked(request, browser)
        spec = self._table().backends.get(given.get("backend", ""))
        if spec is None or not spec.connectable:
            raise OAuthError("unknown_server", "there is no such server")
        if given["action"] != "disconnect" and not self._seen(request, principal, browser)(spec):
            raise OAuthError("unknown_server", "there is no such server")
        if given["action"] == "disconnect":
            if await self._authorization.disconnect(self._flows, spec, principal):
                self._told.connect("disconnected", spec.name, account=principal, ip=request.peer)
            return self._onward(browser, "Disconnected", self._at("/connect"))
        account = self._authorization.account(spec, principal)
        handle = await self._flows.begin(self._authorization.flow_of(account))
        return self._onward(browser, "Connect", self._at(f"/connect/{handle}"))

    # One flow

    async def _flow(self, request: Request, browser: _Browser, handle: str) -> Page:
        flow = await self._flows.read(handle) if len(handle) < 64 else None
        spec = self._table().backends.get(flow.backend) if flow is not None else None
        if flow is None or spec is None or not spec.connectable or url_of(spec) != flow.url:
            return self._nothing()
        principal = self._principal(request, browser, flow.principal)
        if principal is None:
            return await self._ask_who(request, browser, flow.principal)
        if principal != flow.principal:
            self._log.warning("connect_refused", backend=flow.backend, why="another principal")
            self._told.connect(
                "refused",
                flow.backend,
                account=flow.principal,
                ip=request.peer,
                reason="other_principal",
                era=flow.era,
            )
            words = "This link was made for somebody else. It connects an account for him and not for you."
            return self._page(403, "Not for you", pages.text(words), self._all())
        # Whoever opens pages without end leaves room at the authorization server for the accounts of others.
        async with self._asking.of(principal):
            if request.method == "POST" and request.form.get("action") == "connect":
                return await self._pressed(request, browser, handle, flow, spec)
            return await self._offer(browser, handle, flow, spec)

    async def _offer(
        self, browser: _Browser, handle: str, flow: Flow, spec: BackendSpec, provider: Provider | None = None
    ) -> Page:
        """What will be connected, and where: the user decides. `provider`: that of a page that says something else
        than the last one."""
        assert spec.auth is not None
        here, action = self._at(f"/connect/{handle}"), [("action", "connect")]
        asked = f"{shown(flow.client)} (as it calls itself)" if flow.client else ""
        known = [("Server", spec.name), ("At", urlsplit(flow.url).netloc), ("Asked for by", asked)]
        if spec.auth.mode == "key":
            field = pages.secret_field("key", f"Your API key for {spec.name}")
            form = pages.form(here, self._csrf(browser), "Connect", action, field)
            return self._with(browser, f"Connect {spec.name}", pages.facts(known), form)
        changed = [pages.text("This is not what the page said before: look at it again.")] if provider else []
        provider = provider or await self._flows.provider(flow, spec)
        scopes = self._flows.scopes(flow, spec, provider)
        where, issuer = (urlsplit(url).netloc for url in (metadata.for_users(provider.server), provider.server.issuer))
        known += [("Sign in at", where), ("Accounts of", issuer if issuer != where else "")]
        known += [("Rights", shown(" ".join(scopes), 500))]
        words = pages.note("You sign in there, not here. Stagedoor keeps what you grant sealed, for your calls alone.")
        agreed = ("agreed", _terms(provider, scopes))
        form = pages.form(here, self._csrf(browser), "Connect", [*action, agreed])
        return self._with(browser, f"Connect {spec.name}", *changed, pages.facts(known), words, form)

    async def _pressed(self, request: Request, browser: _Browser, handle: str, flow: Flow, spec: BackendSpec) -> Page:
        given = self._checked(request, browser)
        assert spec.auth is not None
        if spec.auth.mode == "key":
            key = given.get("key", "").strip()
            if not key or not grants.fits_header(key):
                raise OAuthError("bad_key", "this is no key that can be sent")
            await self._flows.give_key(handle, flow, key)
            return await self._done(spec, request, flow.principal, flow.era)
        provider = await self._flows.provider(flow, spec)
        if given.get("agreed") != _terms(provider, self._flows.scopes(flow, spec, provider)):
            return await self._offer(browser, handle, flow, spec, provider)
        # From here on this browser is the one that may come back.
        browser = msgspec.structs.replace(browser, nonce=browser.nonce or secrets.token_urlsafe(16))
        onward = await self._flows.authorize(handle, flow, spec, provider, browser.nonce)
        return self._onward(browser, f"To the sign-in for {spec.name}", onward)

    # Coming back

    async def _callback(self, request: Request, browser: _Browser) -> Page:
        answer = request.answer
        state = answer.get("state", "")
        if request.method != "GET" or not 0 < len(state) <= STATE:  # whoever looks ahead by HEAD uses nothing up
            raise OAuthError("bad_state", "this answer is of no sign-in that is under way: begin again")
        if self._sign_in is not None and self._sign_in.is_its(state) and request.path == CALLBACK:
            principal, rights, onward = await self._sign_in.finish(state, browser.nonce, answer)
            known = _known(browser, principal, rights)
            return self._onward(known, "Thank you", onward)
        pending = await self._flows.take(state, browser.nonce, self._base + request.path)
        principal_here = self._principal(request, browser, pending.principal)
        if principal_here != pending.principal:
            self._log.warning("connect_refused", backend=pending.backend, why="another principal")
            of = {"account": pending.principal, "ip": request.peer, "era": pending.era}
            self._told.connect("refused", pending.backend, **of, reason="other_principal")
            raise OAuthError("other_principal", "you are not signed in as who began this: begin again")
        spec = self._table().backends.get(pending.backend)
        if spec is None or not spec.connectable or url_of(spec) != pending.url:
            raise OAuthError("unknown_server", "this server is no longer there")
        async with self._asking.of(pending.principal):
            await self._flows.redeem(pending, spec, answer)
        return await self._done(spec, request, pending.principal, pending.era)

    async def _done(self, spec: BackendSpec, request: Request, principal: str, era: str) -> Page:
        self._told.connect("connected", spec.name, account=principal, ip=request.peer, era=era)
        await self._authorization.changed(place_of(spec, principal))
        words = pages.text(f"Your account at {spec.name} is connected. You can close this page: your client goes on.")
        return self._page(200, "Connected", words)

    # Making pages

    def _nothing(self) -> Page:
        words = pages.text("This link is over. Open your accounts, or try again in your client.")
        return self._page(404, "Nothing here", words, self._all())

    def _all(self) -> str:
        return pages.link(self._at("/connect"), "Your accounts")

    def _at(self, path: str) -> str:
        return self._prefix + path

    def _page(self, status: int, title: str, *body: str) -> Page:
        return Page(status, pages.page(title, *body, root=self._prefix), HEADERS)

    def _with(self, browser: _Browser, title: str, *body: str, status: int = 200) -> Page:
        return Page(status, pages.page(title, *body, root=self._prefix), (*HEADERS, self._kept(browser)))

    def _onward(self, browser: _Browser, title: str, to: str) -> Page:
        """Goes on by a link, and by itself: a redirect would be one of the form's, which the page's policy forbids, and
        would carry the form with it (RFC 9700, section 4.12)."""
        body = pages.page(title, pages.link(to, "Go on", button=True), onward=to, root=self._prefix)
        return Page(200, body, (*HEADERS, self._kept(browser)))


def _whose(browser: _Browser) -> bytes:
    """Which browser it is, and whose."""
    return msgspec.json.encode((browser.id, browser.principal))


def _known(browser: _Browser, principal: str, rights: Rights, digest: bytes = b"") -> _Browser:
    """It is this principal's for a while. Of rights that are too large for a cookie it is kept whose they
    are."""
    large = len(msgspec.json.encode(rights)) > LONGEST_RIGHTS
    kept = Rights(rights.issuer, rights.subject, rights.client, partial=True) if large else rights
    until = time.time() + SESSION
    return msgspec.structs.replace(browser, principal=principal, until=until, rights=kept, digest=digest)


def _terms(provider: Provider, scopes: Sequence[str]) -> str:
    """What a user agrees to by *Connect*, as a digest: where he signs in, whose account that is, and for which rights.
    A server that says something else by then than on the page has got no consent to it."""
    where = metadata.origin(metadata.for_users(provider.server))
    return hashlib.sha256(msgspec.json.encode((where, provider.server.issuer, scopes))).hexdigest()


def _pairs(text: str, twice: str | None = None) -> dict[str, str]:
    """By name. `twice`: what stands for two values of one name; None: neither counts."""
    try:
        given = parse_qsl(text, keep_blank_values=True, max_num_fields=32)
    except ValueError:
        return {}
    times = Counter(name for name, _ in given)
    once = {name: value for name, value in given if times[name] == 1}
    return once if twice is None else dict.fromkeys(times, twice) | once


def _named_issuer(name: str) -> str | None:
    """Whom an address of our client's metadata is for."""
    try:
        issuer = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        return issuer if urlsplit(issuer).netloc else None
    except ValueError:
        return None


def _is_of(peer: str, allowed: tuple[str, ...]) -> bool:
    try:
        ip = ipaddress.ip_address(peer)
        return any(ip in ipaddress.ip_network(network, strict=False) for network in allowed)
    except ValueError:
        return False


def place_of(spec: BackendSpec, principal: str) -> AccountKey:
    """Where a principal's account at a server stands."""
    return AccountKey(principal, spec.name, url_of(spec))
