"""The public listener's ASGI app: checks HTTP, asks the door, writes what it replies. It knows no MCP message.

The serve loop cancels the app when the connection ends; that cancels the call to the door, or ends the stream.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from time import time
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from actors import ports
from actors.ports import Answer, Asker, Converse, Delete, Door, Get, Reply, Streaming
from actors.protocol.errors import required_scopes
from actors.protocol.table import Limits
from gateway.http.access import ACCESS
from gateway.http.authorization import RETRY, Authorization, path_of
from gateway.http.bodies import SMALL, NoRoomError, Room, Share, read_body
from gateway.http.conversation import send_rejection, serve_websocket, unfit
from gateway.http.request import DisconnectedError, Receive, Scope, accepts, header_map, is_json, peer_of
from gateway.http.response import (
    PUBLIC,
    Header,
    HttpRefusal,
    Send,
    cors_headers,
    preflight_headers,
    public_preflight_headers,
    refusal,
    send_answer,
)
from gateway.http.rounds import ROUNDS
from gateway.http.routes import Health, IssuerMetadata, Mcp, Messages, Metadata, Pages, Route, Sse, Ws, route
from gateway.http.security import Security, SecurityChecks
from gateway.http.sse_channel import MESSAGES, PARAMETER, Post, said, serve_sse
from gateway.http.sse_stream import send_stream
from gateway.http.token_life import UNKNOWN, LimitedSource, TokenLife
from gateway.observability.access import Access

_MESSAGES = MESSAGES.encode()
_ALLOW = ("Allow", "GET, POST, DELETE, OPTIONS")
_CODING = ("Accept-Encoding", "identity")
_PLAIN = re.compile(rb"%b=([A-Za-z0-9_-]+)" % PARAMETER.encode())
_ONLY_READ = refusal(405, "Method not allowed", ("Allow", "GET, HEAD, OPTIONS"))
_HEALTHY = Answer(200, b'{"status":"ok"}', (("Cache-Control", "no-store"),))


def _everybody(endpoint: str, asker: Asker) -> bool:
    """Nothing is hidden."""
    return True


def _never() -> bool:
    return False


FORM_BYTES = 32 * 1024
"""Of a form on one of our pages."""
ServePage = Callable[[str, str, str, Mapping[str, str], bytes, str], Awaitable[Answer]]
"""One of our pages, by method, path, query, headers, body and the address of who asks."""

_COUNTED = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})


def _uncounted(*_: object) -> None:
    """Nobody counts."""


class Opening(NamedTuple):
    """In place of a reply: a stream on which everything goes out."""

    endpoint: str
    asker: Asker
    converse: Converse
    post: "Post"


class McpApp:
    """`converse` serves clients that have one channel for everything, `post` brings what they POST there. `known` says
    whether an endpoint exists; `overloaded` whether POSTs are to be refused for now (503); `answered` hears of each
    answer's method and status, `refused` of the kind of what never came to the door. `wall` is the wall clock, by which
    tokens end.

    `calls` counts requests that wait in the door, `streams` the event streams being written; in `room` is what was read
    of messages that nobody has taken.
    """

    def __init__(
        self,
        door: Door,
        security: Security,
        limits: Limits,
        *,
        authorize: Callable[[SecurityChecks], Authorization] = Authorization,
        converse: Converse | None = None,
        post: Post | None = None,
        known: Callable[[str], bool],
        sees: Callable[[str, Asker], bool] = _everybody,
        overloaded: Callable[[], bool] = _never,
        answered: Callable[[str, int], None] = _uncounted,
        refused: Callable[[str], None] = _uncounted,
        pages: ServePage | None = None,
        wall: Callable[[], float] = time,
    ) -> None:
        self._wall = wall
        self._converse = converse
        self._to_stream = post
        self._answered = answered
        self._refused = refused
        self._pages = pages
        self.calls = 0
        self.streams = 0
        self._door = door
        self._checks = SecurityChecks(security)
        self._authorization = authorize(self._checks)
        self._limits = limits
        self.room = Room(limits.bodies_bytes)
        self._known = known
        self._sees = sees
        self._overloaded = overloaded

    def admit(self, security: Security, authorize: Callable[[SecurityChecks], Authorization]) -> None:
        """These say from the next request on who may speak here."""
        self._checks = SecurityChecks(security)
        self._authorization = authorize(self._checks)

    def _token_life(self, asker: Asker, scope: Scope) -> TokenLife:
        """How long what he begins now may go on: by the configuration that is in force then."""
        told_by = asked = self._authorization
        waits = 0.0

        async def again() -> Asker | Answer | None:
            nonlocal told_by, asked, waits
            now = self._authorization
            if told_by is now or (asked is now and self._wall() < waits):
                return None
            found = await now.admit(scope, header_map(scope["headers"]), self._target(scope))
            asked, waits = now, self._wall() + RETRY  # an issuer that is away is not waited for with each message
            if not isinstance(found, Answer) or found.status != UNKNOWN:
                told_by = now
            return found

        return TokenLife(asker, self._withdrawn, self._wall, again)

    def _withdrawn(self, asker: Asker) -> bool:
        return self._authorization.withdrawn(asker)

    def bound_by(self, limits: Limits) -> None:
        """These count from the next request on."""
        self._limits = limits

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        return (self._websocket if scope["type"] == "websocket" else self._request)(scope, receive, send)

    def at_once(self, scope: Scope, body: bytes) -> bool:
        """As in `AtOnce`: a message for an SSE stream of this process, if nothing keeps it from being taken."""
        if _MESSAGES not in scope["raw_path"] or scope["method"] != "POST" or len(body) > SMALL:
            return False
        headers, target = header_map(scope["headers"]), self._target(scope)
        if not isinstance(target, Messages) or self._to_stream is None or "origin" in headers:
            return False
        if self._foreign(headers) or _unreadable(headers) or len(body) > self._limits.message_bytes:
            return False
        asker = self._authorization.known(scope, headers, target)
        if asker is None:
            return False
        token = _named(scope["query_string"])
        taken = self._to_stream.say_here(token, asker.principal, body, asker.rights, target.endpoint)
        if taken:
            self._answered("POST", 202)
        return taken

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply, extra = await self._respond(scope, receive)
        except DisconnectedError:
            return
        status = reply.status if isinstance(reply, Answer) else 200
        self._answered(scope["method"] if scope["method"] in _COUNTED else "other", status)
        if isinstance(reply, HttpRefusal):
            self._refused(reply.reason)
        if isinstance(reply, Opening):
            self.streams += 1
            try:
                token_life = self._token_life(reply.asker, scope)
                await serve_sse(
                    send,
                    reply.post,
                    reply.converse,
                    reply.endpoint,
                    reply.asker,
                    token_life,
                    self._limits,
                    extra,
                    scope[ROUNDS],
                    peer_of(scope),
                )
            finally:
                self.streams -= 1
        elif isinstance(reply, Streaming):
            self.streams += 1
            try:
                await send_stream(send, reply, self._limits.keep_alive, extra)
            finally:
                self.streams -= 1
        else:
            await send_answer(send, reply, extra, head_only=scope["method"] == "HEAD")

    async def _respond(self, scope: Scope, receive: Receive) -> tuple["Reply | Opening", tuple[Header, ...]]:
        """The reply, and the headers that a browser needs with it."""
        headers = header_map(scope["headers"])
        target = self._target(scope)
        if isinstance(target, Pages) and headers.get("origin") == "null":
            del headers["origin"]  # a page that sends no referrer says so; its forms bring a proof of their own
        if isinstance(target, Metadata | IssuerMetadata) and self._checks.host_allowed(headers.get("host")):
            if scope["method"] == "OPTIONS":
                return Answer(204), public_preflight_headers(headers.get("access-control-request-headers"))
            return await self._reply(scope, target, headers, receive), PUBLIC
        refused = self._foreign(headers)
        if refused is not None:
            return refused, ()
        origin = headers.get("origin")
        if scope["method"] == "OPTIONS":
            return Answer(204), preflight_headers(origin, headers.get("access-control-request-headers"))
        return await self._reply(scope, target, headers, receive), cors_headers(origin)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket has the checks of every request before it is one, and none of a message's headers after."""
        found = await self._admit(scope)
        if isinstance(found, Answer):
            self._answered("GET", found.status)
            if isinstance(found, HttpRefusal):
                self._refused(found.reason)
            await send_rejection(send, found)
            return
        endpoint, asker, converse = found
        self._answered("GET", 101)
        self.streams += 1
        # Of the handshake nothing else is needed later, and the socket forgets it.
        token = [header for header in scope["headers"] if header[0] == b"authorization"]
        try:
            token_life = self._token_life(asker, {**scope, "headers": token})
            await serve_websocket(scope, receive, send, converse, endpoint, asker, token_life, self._limits, self.room)
        finally:
            self.streams -= 1

    async def _admit(self, scope: Scope) -> tuple[str, Asker, Converse] | Answer:
        headers = header_map(scope["headers"])
        refused = self._foreign(headers)
        if refused is not None:
            return refused
        target = self._target(scope)
        asker = await self._authorization.admit(scope, headers, target)
        if isinstance(asker, Answer):
            return asker
        if not isinstance(target, Ws) or self._converse is None or not self._there(target.endpoint, asker):
            return refusal(404, "Not found: no WebSocket here")
        if self._overloaded():
            return refusal(503, "Overloaded, try again", ("Retry-After", "1"))
        refused = unfit(scope)
        return (target.endpoint, asker, self._converse) if refused is None else refused

    def _target(self, scope: Scope) -> Route | None:
        path, prefix = scope["path"], self._authorization.prefix
        return route(path, scope.get("raw_path", b"")) or (
            route(path.removeprefix(prefix), scope.get("raw_path", b"")) if prefix and path.startswith(prefix) else None
        )

    async def _issuer_metadata(self, method: str) -> Answer:
        if method not in {"GET", "HEAD"}:
            return _ONLY_READ
        return await self._authorization.issuer_metadata() or refusal(404, "Not found: no metadata here")

    def _metadata(self, target: Metadata, method: str) -> Answer:
        """Open to everybody: it is for those who have no token yet."""
        if method not in {"GET", "HEAD"}:
            return _ONLY_READ
        named = Metadata(target.path.removeprefix(self._authorization.prefix))
        there = route(named.path)
        if not named.path or (isinstance(there, Mcp | Sse | Ws) and self._known(there.endpoint)):
            found = self._authorization.metadata(Metadata(path_of(there)) if named.path else named)
            if found is not None:
                return found
        return refusal(404, "Not found: no metadata here")

    def _there(self, endpoint: str, asker: Asker) -> bool:
        """Whether an endpoint is there for whoever asks: one that is hidden from him is not."""
        return self._known(endpoint) and self._sees(endpoint, asker)

    def _foreign(self, headers: Mapping[str, str]) -> Answer | None:
        """The refusal of a Host or an Origin that may not speak here."""
        if not self._checks.host_allowed(headers.get("host")):
            return refusal(403, "Forbidden: this Host is not served here", kind="forbidden_host")
        origin = headers.get("origin")
        if origin is not None and not self._checks.origin_allowed(origin):
            return refusal(403, "Forbidden: this Origin is not allowed", kind="forbidden_origin")
        return None

    async def _reply(
        self, scope: Scope, target: Route | None, headers: Mapping[str, str], receive: Receive
    ) -> "Reply | Opening":
        method: str = scope["method"]
        if isinstance(target, Health):
            return _HEALTHY if method in {"GET", "HEAD"} else refusal(405, "Method not allowed", ("Allow", "GET, HEAD"))
        if isinstance(target, Pages):
            return await self._page(scope, headers, receive)
        if isinstance(target, Metadata):
            return self._metadata(target, method)
        if isinstance(target, IssuerMetadata):
            return await self._issuer_metadata(method)
        asker = await self._authorization.admit(scope, headers, target)
        if isinstance(asker, Answer):
            return asker
        if isinstance(target, Messages) and self._to_stream is not None:
            return await self._say(scope, target.endpoint, asker, headers, receive)
        if target is None or isinstance(target, Messages) or not self._there(target.endpoint, asker):
            return refusal(404, "Not found: no such endpoint")
        if isinstance(target, Ws):
            return refusal(426, "Upgrade required: this is a WebSocket", ("Upgrade", "websocket"))
        if isinstance(target, Sse):
            return self._open_sse(target, method, asker, headers)
        self.calls += 1
        try:
            reply = await self._ask(scope, target, asker, headers, receive)
        finally:
            self.calls -= 1
        if isinstance(reply, Answer):
            return self._stepping_up(reply, target) if reply.status == 403 else reply
        source = LimitedSource(reply.source, self._token_life(asker, scope), expires=method == "GET")
        return Streaming(source, reply.headers)

    def _stepping_up(self, answer: Answer, target: Mcp) -> Answer:
        """A refusal for want of scopes, with the challenge by which a client asks its user for them (MCP 2026-07-28,
        authorization, "Runtime Insufficient Scope Errors")."""
        challenge = self._authorization.insufficient(path_of(target), required_scopes(answer.body))
        return Answer(answer.status, answer.body, (*answer.headers, ("WWW-Authenticate", challenge)))

    async def _page(self, scope: Scope, headers: Mapping[str, str], receive: Receive) -> Answer:
        """Who is there, the page asks itself."""
        if self._pages is None:
            return refusal(404, "Not found: no such endpoint")
        if scope["method"] not in {"GET", "HEAD", "POST"}:
            return refusal(405, "Method not allowed", ("Allow", "GET, HEAD, POST, OPTIONS"))
        with Share(self.room) as share:
            try:
                body = await read_body(headers, receive, FORM_BYTES, share) if scope["method"] == "POST" else b""
            except NoRoomError:
                return refusal(503, "No room for a form, try again", ("Retry-After", "1"))
            if body is None:
                return refusal(413, f"The form is larger than {FORM_BYTES} bytes")
            query = scope.get("query_string", b"").decode("latin-1")
            return await self._pages(scope["method"], scope["path"], query, headers, body, peer_of(scope))

    async def _ask(
        self, scope: Scope, target: Mcp, asker: Asker, headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        access, method = scope.get(ACCESS), scope["method"]
        if access is not None:
            access.principal = asker.principal.name
        if method == "POST":
            return await self._post(target, asker, headers, receive, access, peer_of(scope))
        if method == "GET":
            if not accepts(headers.get("accept", "")).events:
                return refusal(406, "Not acceptable: the client must accept text/event-stream")
            return await self._door.get(Get(target.endpoint, asker.principal, headers, asker.rights))
        if method == "DELETE":
            return await self._door.delete(Delete(target.endpoint, asker.principal, headers, asker.rights))
        return refusal(405, "Method not allowed", _ALLOW)

    def _open_sse(self, target: Sse, method: str, asker: Asker, headers: Mapping[str, str]) -> "Answer | Opening":
        if self._converse is None or self._to_stream is None:
            return refusal(404, "Not found: no such endpoint")
        if method != "GET":  # by this a client of a later revision learns that it is the old transport
            return refusal(405, "Method not allowed", ("Allow", "GET, OPTIONS"))
        if not accepts(headers.get("accept", "*/*")).events:
            return refusal(406, "Not acceptable: the client must accept text/event-stream")
        if self._overloaded():
            return refusal(503, "Overloaded, try again", ("Retry-After", "1"))
        return Opening(target.endpoint, asker, self._converse, self._to_stream)

    async def _say(
        self, scope: Scope, endpoint: str, asker: Asker, headers: Mapping[str, str], receive: Receive
    ) -> Answer:
        """A message for an SSE stream, which its answer goes to."""
        assert self._to_stream is not None
        if scope["method"] != "POST":
            return refusal(405, "Method not allowed", ("Allow", "POST, OPTIONS"))
        with Share(self.room) as share:
            body = await self._body(headers, receive, share)
            if isinstance(body, Answer):
                return body
            token = _named(scope.get("query_string", b""))
            return said(await self._to_stream.say(token, asker.principal, body, asker.rights, endpoint))

    async def _body(self, headers: Mapping[str, str], receive: Receive, share: Share) -> bytes | Answer:
        unreadable = _unreadable(headers)
        if unreadable is not None:
            return unreadable
        try:
            body = await read_body(headers, receive, self._limits.message_bytes, share)
        except NoRoomError:
            return refusal(503, "No room for a message of this size, try again", ("Retry-After", "1"))
        if body is None:
            return refusal(413, f"The message is larger than {self._limits.message_bytes} bytes")
        return body

    async def _post(
        self,
        target: Mcp,
        asker: Asker,
        headers: Mapping[str, str],
        receive: Receive,
        access: Access | None,
        peer: str,
    ) -> Reply:
        if self._overloaded():
            return refusal(503, "Overloaded, try again", ("Retry-After", "1"))
        accepted = accepts(headers.get("accept", ""))
        if not (accepted.json and accepted.events):
            return refusal(406, "Not acceptable: the client must accept application/json and text/event-stream")
        with Share(self.room) as share:
            body = await self._body(headers, receive, share)
            if isinstance(body, Answer):
                return body
            post = ports.Post(target.endpoint, asker.principal, headers, body, rights=asker.rights, peer=peer)
            if access is not None:
                access.asked = True
            return await self._door.post(post)


def _unreadable(headers: Mapping[str, str]) -> Answer | None:
    if not is_json(headers.get("content-type", "")):
        return refusal(415, "Unsupported media type: Content-Type must be application/json")
    if headers.get("content-encoding", "identity").lower() != "identity":
        return refusal(415, "Unsupported content coding: the body must not be compressed", _CODING)
    return None


def _named(query: bytes) -> str:
    """What names the stream in the query of a POST."""
    plain = _PLAIN.fullmatch(query)
    if plain is not None:  # as what we name ourselves is: nothing is encoded, and nothing follows
        return plain[1].decode("ascii")
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=8).get(PARAMETER, [""])[0]
    except ValueError:
        return ""
