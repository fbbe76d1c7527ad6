"""An authorization server and an MCP server behind it, on one socket of this machine, which keep every byte they get.
The MCP server is there over Streamable HTTP and WebSocket (`/mcp`) and over HTTP+SSE (`/sse`).

The authorization server has users, rotates refresh tokens, and takes one that was used before for stolen. What the MCP
server is asked it answers with the token by which it was asked, so that a test sees whose call it was.
"""

import base64
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import jwt
import trio
import wsproto
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

MODERN = "2026-07-28"
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, section 1.3."""
KEY = ec.generate_private_key(ec.SECP256R1())
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


@dataclass
class Asked:
    """One request, as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(urlsplit(self.target).query).items()}

    @property
    def form(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(self.body.decode()).items()}

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass
class Granted:
    user: str
    client: str
    scopes: str
    resource: str = ""
    actor: str = ""


Reply = tuple[int, dict[str, str], bytes]


@dataclass
class OAuthWorld:
    """See above. Everything may be changed while it runs."""

    port: int = 0
    eras: str = "both"
    open_methods: frozenset[str] = frozenset()
    """What the MCP server answers without a token."""
    lives: int | None = 3600
    rotates: bool = True
    s256: bool = True
    cimd: bool = False
    dcr: bool = True
    iss: bool = True
    says_iss: str | None = None
    """Instead of its own issuer."""
    needs: dict[str, str] = field(default_factory=dict)
    """Scope by tool."""
    as_tasks: str = ""
    """Whether its tools run as tasks (2025-11-25): `optional`, `required`."""
    by_scope: bool = False
    """Whether the MCP server lists to each those tools alone that the scopes are enough for."""
    scopes: list[str] = field(default_factory=lambda: ["mcp"])
    withheld: str = ""
    """A scope that no user is given, whatever is asked for."""
    token_status: int = 200
    lies: bool = False
    """Whether the MCP server answers calls as if an account were missing."""
    user: str = "nobody"
    """Who is signed in at the authorization server."""
    resource: str | None = None
    names: str | None = None
    """The authorization server that the MCP server names, if it is not this one."""
    documents: str | None = None
    """Where its challenge says that the metadata of the MCP server is, if not where it is."""
    says: dict[str, Any] = field(default_factory=dict)
    """What the metadata of the authorization server says otherwise."""
    broken: set[str] = field(default_factory=set)
    """Paths that answer 503."""
    secrets: dict[str, str] = field(default_factory=lambda: {"gw": "gw secret"})
    public_keys: dict[str, Any] = field(default_factory=dict)
    """Of clients that sign who they are."""
    wants_assertions_for: str = ""
    """Instead of itself."""
    hides: bool = False
    """Whether its metadata is not where its issuer says, but at `/somewhere`."""
    forgotten: set[str] = field(default_factory=set)
    """Clients that were registered here once."""
    asked: list[Asked] = field(default_factory=list)
    open_sockets: set[int] = field(default_factory=set)
    """WebSockets that are open."""
    streams: dict[str, tuple[trio.SocketStream, trio.Lock]] = field(default_factory=dict)
    """Of HTTP+SSE, by the number that stands in their endpoint."""
    access: dict[str, Granted] = field(default_factory=dict)
    refresh: dict[str, Granted] = field(default_factory=dict)
    used: dict[str, Granted] = field(default_factory=dict)
    codes: dict[str, tuple[Granted, dict[str, str]]] = field(default_factory=dict)
    revoked: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    numbers: Any = field(default_factory=lambda: count(1))
    on_call: Callable[[str], None] = lambda tool: None
    given_for: dict[str, str] = field(default_factory=dict)
    """By what it gave in exchange: the `org_id` of the token that it was given for."""
    issued_type: str | None = ACCESS_TOKEN
    """What it says that it gives in exchange."""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def calls(self, method: str = "tools/call") -> list[Asked]:
        """What the MCP server was asked of this method."""
        posts = [a for a in self.asked if a.path in ("/mcp", "/messages") and a.method == "POST"]
        return [a for a in posts if a.message.get("method") == method]

    def forget_tokens(self, user: str = "") -> None:
        """No access token of this user is good any more, or none at all."""
        self.access = {t: g for t, g in self.access.items() if user not in ("", g.user)}

    def token_for(self, audience: str, user: str, lives: float = 3600, **claims: Any) -> str:
        """A token of this issuer for a resource, signed."""
        now = time.time()
        whole = {"iss": self.origin, "sub": user, "aud": audience, "iat": now, "exp": now + lives} | claims
        return jwt.encode(whole, KEY, "ES256", headers={"kid": "one", "typ": "at+jwt"})

    # Answers

    def answer(self, asked: Asked) -> Reply:
        path = asked.path
        self.counts[path] += 1
        if path in self.broken:
            return 503, {}, b"{}"
        if path == "/.well-known/oauth-protected-resource/mcp":
            return _json(
                {"resource": self.resource or self.url, "authorization_servers": [self.names or self.origin]}
                | self._supported()
            )
        if path == ("/somewhere" if self.hides else "/.well-known/oauth-authorization-server"):
            return _json(self.metadata())
        if path == "/jwks":
            public = ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
            return _json({"keys": [public | {"kid": "one", "alg": "ES256"}]})
        if path == "/register" and self.dcr:
            name = f"dcr-{next(self.numbers)}"
            return _json({"client_id": name, **asked.message, "client_secret_expires_at": 0}, 201)
        if path == "/authorize":
            return self._authorize(asked)
        if path == "/token":
            return self._token(asked)
        if path == "/revoke":
            if self._client(asked) is None:
                return _json({"error": "invalid_client"}, 401)
            self.revoked.append(asked.form["token"])
            self.refresh.pop(asked.form["token"], None)
            return _json({})
        if path in ("/mcp", "/sse", "/messages"):
            return self._mcp(asked)
        return 404, {}, b""

    def _supported(self) -> dict[str, Any]:
        return {"scopes_supported": self.scopes} if self.scopes else {}

    def metadata(self) -> dict[str, Any]:
        """Of the authorization server."""
        found: dict[str, Any] = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "revocation_endpoint": f"{self.origin}/revoke",
            "jwks_uri": f"{self.origin}/jwks",
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": self.iss,
            "client_id_metadata_document_supported": self.cimd,
        }
        if self.s256:
            found["code_challenge_methods_supported"] = ["S256"]
        if self.dcr:
            found["registration_endpoint"] = f"{self.origin}/register"
        return found | self.says

    def _authorize(self, asked: Asked) -> Reply:
        query = asked.query
        assert query["code_challenge_method"] == "S256"
        if query["client_id"] in self.forgotten:
            return 400, {}, b"unknown client"
        code = f"code-{next(self.numbers)}"
        scopes = " ".join(scope for scope in query.get("scope", "").split() if scope != self.withheld)
        granted = Granted(self.user, query["client_id"], scopes, query.get("resource", ""))
        self.codes[code] = (granted, query)
        back = {"code": code, "state": query["state"]}
        if self.iss or self.says_iss is not None:
            back["iss"] = self.origin if self.says_iss is None else self.says_iss
        return 302, {"location": f"{query['redirect_uri']}?{urlencode(back)}"}, b""

    def _token(self, asked: Asked) -> Reply:
        if self.token_status != 200:
            return _json({"error": "server_error"}, self.token_status)
        form, client = asked.form, self._client(asked)
        if client is None:
            return _json({"error": "invalid_client"}, 401)
        match form["grant_type"]:
            case "client_credentials":
                return self._give(Granted("itself", client, form.get("scope", ""), form.get("resource", "")), False)
            case grant if grant == EXCHANGE:
                return self._exchange(form, client)
            case "authorization_code":
                granted, query = self.codes.pop(form["code"], (None, {}))
                digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
                good = granted is not None and granted.client == client
                if not good or digest.decode().rstrip("=") != query["code_challenge"]:
                    return _json({"error": "invalid_grant"}, 400)
                assert granted is not None
                if form["redirect_uri"] != query["redirect_uri"] or form.get("resource", "") != granted.resource:
                    return _json({"error": "invalid_grant"}, 400)
                return self._give(granted, True)
            case "refresh_token":
                token = form["refresh_token"]
                if token in self.used:
                    # Somebody has it who should not: the family is at its end (RFC 9700, section 4.14.2).
                    family = self.used[token].user
                    self.refresh = {t: g for t, g in self.refresh.items() if g.user != family}
                    self.counts["reuse"] += 1
                found = self.refresh.get(token)
                if found is None:
                    return _json({"error": "invalid_grant"}, 400)
                self.counts["refreshed"] += 1
                if self.rotates:
                    self.used[token] = self.refresh.pop(token)
                return self._give(found, self.rotates)
        return _json({"error": "unsupported_grant_type"}, 400)

    def _exchange(self, form: dict[str, str], client: str) -> Reply:
        """RFC 8693: for a token of its own that is still good."""
        assert form["subject_token_type"] == ACCESS_TOKEN
        try:
            claims = jwt.decode(
                form["subject_token"], KEY.public_key(), ["ES256"], options={"verify_aud": False}, issuer=self.origin
            )
        except jwt.PyJWTError:
            return _json({"error": "invalid_request"}, 400)
        granted = Granted(claims["sub"], client, form.get("scope", claims.get("scope", "")), form.get("resource", ""))
        if "actor_token" in form:
            assert form["actor_token_type"] == ACCESS_TOKEN
            actor = self.access.get(form["actor_token"])
            if actor is None or actor.user != "itself":
                return _json({"error": "invalid_request"}, 400)
            granted = replace(granted, actor=actor.client)
        status, headers, body = self._give(granted, False)
        self.given_for[json.loads(body)["access_token"]] = claims.get("org_id", "")
        more = {"issued_token_type": self.issued_type} if self.issued_type is not None else {}
        return status, headers, json.dumps(json.loads(body) | more).encode()

    def _client(self, asked: Asked) -> str | None:
        if "client_assertion" in asked.form:
            return self._signer(asked.form["client_assertion"])
        header = asked.headers.get("authorization", "")
        if header.startswith("Basic "):
            id, _, secret = base64.b64decode(header[6:]).decode().partition(":")
            return unquote_plus(id) if self.secrets.get(unquote_plus(id)) == unquote_plus(secret) else None
        id = asked.form.get("client_id", "")
        return id if id and id not in self.secrets and id not in self.forgotten else None

    def _signer(self, assertion: str) -> str | None:
        """Whose it is (RFC 7523, section 3): it is for whom this server wants it to be for."""
        try:
            wanted = self.wants_assertions_for or self.origin
            named = jwt.decode(assertion, options={"verify_signature": False})["sub"]
            claims = jwt.decode(assertion, self.public_keys.get(named), ["ES256"], audience=wanted)
        except (jwt.PyJWTError, TypeError):
            return None
        return str(named) if claims["iss"] == claims["sub"] else None

    def _give(self, granted: Granted, with_refresh: bool) -> Reply:
        token = f"canary-{granted.user}-{next(self.numbers)}"
        self.access[token] = granted
        body: dict[str, Any] = {"access_token": token, "token_type": "Bearer", "scope": granted.scopes}
        if self.lives is not None:
            body["expires_in"] = self.lives
        if with_refresh:
            body["refresh_token"] = f"refresh-{granted.user}-{next(self.numbers)}"
            self.refresh[body["refresh_token"]] = granted
        return _json(body)

    # The MCP server

    def lets_in(self, asked: Asked) -> bool:
        """Whether a connection that stays may be opened by this request."""
        return asked.token in self.access

    def _mcp(self, asked: Asked) -> Reply:
        opens = asked.path == "/sse" or "upgrade" in asked.headers
        if asked.method != "POST" and not opens:
            return (405, {}, b"") if asked.method == "GET" else (200, {}, b"")
        message: dict[str, Any] = {"method": "open", "id": 0} if opens else asked.message
        method = message.get("method", "")
        granted = self.access.get(asked.token)
        documents = self.documents or f"{self.origin}/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer resource_metadata="{documents}"'
        if granted is None and method not in self.open_methods:
            more = ', error="invalid_token"' if asked.token else ""
            return 401, {"www-authenticate": challenge + more}, b""
        tool = (message.get("params") or {}).get("name", "")
        needed = self.needs.get(tool) if method == "tools/call" else None
        if needed is not None and granted is not None and not set(needed.split()) <= set(granted.scopes.split()):
            scope = f', error="insufficient_scope", scope="{needed}"'
            return 403, {"www-authenticate": challenge + scope}, b""
        if "id" not in message:
            return 202, {}, b""
        if self.lies and method == "tools/call":
            data = {"reason": "not_connected", "executed": "no"}
            error = {"code": -32603, "message": "no account", "data": data}
            return _json({"jsonrpc": "2.0", "id": message["id"], "error": error})
        modern = asked.headers.get("mcp-protocol-version") == MODERN or method == "server/discover"
        result = self._result(method, message, granted, modern)
        if result is None:
            error = {"code": -32601, "message": "no such method"}
            return _json({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return _json({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _result(self, method: str, message: dict[str, Any], granted: Granted | None, modern: bool) -> Any:
        info = {"name": "behind oauth", "version": "1"}
        complete: dict[str, Any] = {"resultType": "complete"} if modern else {}
        if modern and self.eras == "legacy":
            return None
        match method:
            case "initialize" if self.eras != "modern":
                version = message["params"]["protocolVersion"]
                tasks = {"tasks": {"requests": {"tools": {"call": {}}}}} if self.as_tasks else {}
                return {"protocolVersion": version, "capabilities": {"tools": {}} | tasks, "serverInfo": info}
            case "server/discover":
                return complete | {
                    "supportedVersions": [MODERN], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private",
                    "_meta": {"io.modelcontextprotocol/serverInfo": info},
                }  # fmt: skip
            case "tools/list":
                user = granted.user if granted is not None else "anybody"
                had = set(granted.scopes.split()) if granted is not None else set[str]()
                needs = [tool for tool, needed in self.needs.items() if not self.by_scope or {*needed.split()} <= had]
                names = ["whoami", *needs, f"of_{user}"]
                more = {"execution": {"taskSupport": self.as_tasks}} if self.as_tasks else {}
                tools = [{"name": name, "inputSchema": {"type": "object"}, **more} for name in names]
                hints = {"ttlMs": 60_000, "cacheScope": "private"} if modern else {}
                return complete | {"tools": tools} | hints
            case "tools/call":
                assert granted is not None
                self.on_call(message["params"]["name"])
                if "task" in message["params"]:
                    began = "2026-01-01T00:00:00Z"
                    task = {
                        "taskId": "t",
                        "status": "completed",
                        "createdAt": began,
                        "lastUpdatedAt": began,
                        "ttl": None,
                    }
                    return {"task": task}
                said = json.dumps({"user": granted.user, "args": message["params"].get("arguments", {})})
                return complete | {"content": [{"type": "text", "text": said}]}
            case "tasks/result":
                assert granted is not None
                return {"content": [{"type": "text", "text": json.dumps({"user": granted.user})}]}
            case "ping":
                return {}
        return None


def _json(value: Any, status: int = 200) -> Reply:
    return status, {"content-type": "application/json"}, json.dumps(value).encode()


@asynccontextmanager
async def open_oauth_world(**options: Any) -> AsyncIterator[OAuthWorld]:
    """Runs until the block ends."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    world = OAuthWorld(port=listeners[0].socket.getsockname()[1], **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, lambda stream: _serve(world, stream), listeners)
        yield world
        nursery.cancel_scope.cancel()


async def _serve(world: OAuthWorld, stream: trio.SocketStream) -> None:
    buffer = b""
    try:
        while True:
            while b"\r\n\r\n" not in buffer:
                chunk = await stream.receive_some()
                if not chunk:
                    return
                buffer += chunk
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            while len(buffer) < int(headers.get("content-length", "0")):
                buffer += await stream.receive_some()
            length = int(headers.get("content-length", "0"))
            body, buffer = buffer[:length], buffer[length:]
            method, target, _ = first.split(" ")
            asked = Asked(method, target, headers, body)
            world.asked.append(asked)
            if asked.headers.get("upgrade", "").lower() == "websocket" and world.lets_in(asked):
                await _converse(world, stream, asked)
                return
            if asked.path == "/sse" and world.lets_in(asked):
                await _stream(world, stream)
                return
            status, more, content = world.answer(asked)
            if asked.path == "/messages" and status == 200:
                await _event(*world.streams[asked.query["n"]], "message", content)
                status, more, content = 202, {}, b""
            lines = [f"HTTP/1.1 {status} x", *(f"{n}: {v}" for n, v in more.items()), f"content-length: {len(content)}"]
            await stream.send_all("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def _converse(world: OAuthWorld, stream: trio.SocketStream, opened: Asked) -> None:
    """A WebSocket, by what it was opened with."""
    accept = base64.b64encode(hashlib.sha1((opened.headers["sec-websocket-key"] + GUID).encode()).digest()).decode()
    head = f"HTTP/1.1 101 x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: {accept}\r\n"
    await stream.send_all(f"{head}sec-websocket-protocol: mcp\r\n\r\n".encode())
    frames = wsproto.connection.Connection(wsproto.ConnectionType.SERVER)
    number = next(world.numbers)
    world.open_sockets.add(number)
    text = ""
    try:
        while data := await stream.receive_some():
            frames.receive_data(data)
            for event in frames.events():
                if isinstance(event, wsproto.events.Ping):
                    await stream.send_all(frames.send(event.response()))
                elif isinstance(event, wsproto.events.CloseConnection):
                    await stream.send_all(frames.send(event.response()))
                    return
                elif isinstance(event, wsproto.events.TextMessage):
                    text += event.data
                    if event.message_finished:
                        headers = {k: v for k, v in opened.headers.items() if k == "authorization"}
                        asked, text = Asked("POST", "/mcp", headers, text.encode()), ""
                        world.asked.append(asked)
                        _, _, body = world.answer(asked)
                        if body:
                            await stream.send_all(frames.send(wsproto.events.TextMessage(body.decode())))
    finally:
        world.open_sockets.discard(number)


async def _stream(world: OAuthWorld, stream: trio.SocketStream) -> None:
    """The stream of HTTP+SSE: answers to what is posted elsewhere come here."""
    number = str(next(world.numbers))
    lock = trio.Lock()
    world.streams[number] = (stream, lock)
    await stream.send_all(b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\n\r\n")
    await _event(stream, lock, "endpoint", f"/messages?n={number}".encode())
    while await stream.receive_some():
        pass


async def _event(stream: trio.SocketStream, lock: trio.Lock, name: str, data: bytes) -> None:
    async with lock:
        await stream.send_all(b"event: %b\ndata: %b\n\n" % (name.encode(), data))
