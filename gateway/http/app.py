"""The public listener's ASGI app: checks HTTP, asks the door, writes what it replies. It knows no MCP message.

The serve loop cancels the app when the connection ends; that cancels the call to the door, or ends the stream.
"""

from collections.abc import Callable, Mapping

from actors.ports import Answer, Converse, Delete, Door, Get, Post, Principal, Reply, Streaming
from actors.protocol.table import Limits
from gateway.http.bodies import NoRoomError, Room, Share, read_body
from gateway.http.conversation import send_rejection, serve_websocket, unfit
from gateway.http.request import DisconnectedError, Receive, Scope, accepts, header_map, is_json
from gateway.http.response import Header, Send, cors_headers, preflight_headers, refusal, send_answer
from gateway.http.routes import Health, Mcp, Ws, route
from gateway.http.security import Gate, Security
from gateway.http.sse_stream import send_stream

_ALLOW = ("Allow", "GET, POST, DELETE, OPTIONS")
_CODING = ("Accept-Encoding", "identity")
_HEALTHY = Answer(200, b'{"status":"ok"}', (("Cache-Control", "no-store"),))


def _never() -> bool:
    return False


_COUNTED = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})


def _uncounted(method: str, status: int) -> None:
    """Nobody counts."""


class McpApp:
    """`converse` serves clients that have one channel for everything. `known` says whether an endpoint exists;
    `overloaded` whether POSTs are to be refused for now (503); `answered` hears of each answer's method and status.

    `calls` counts requests that wait in the door, `streams` the event streams being written.
    """

    def __init__(
        self,
        door: Door,
        security: Security,
        limits: Limits,
        *,
        converse: Converse | None = None,
        known: Callable[[str], bool],
        overloaded: Callable[[], bool] = _never,
        answered: Callable[[str, int], None] = _uncounted,
    ) -> None:
        self._converse = converse
        self._answered = answered
        self.calls = 0
        self.streams = 0
        self._door = door
        self._gate = Gate(security)
        self._limits = limits
        self._room = Room(limits.bodies_bytes)
        self._known = known
        self._overloaded = overloaded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        try:
            reply, extra = await self._respond(scope, receive)
        except DisconnectedError:
            return
        status = 200 if isinstance(reply, Streaming) else reply.status
        self._answered(scope["method"] if scope["method"] in _COUNTED else "other", status)
        if isinstance(reply, Streaming):
            self.streams += 1
            try:
                await send_stream(send, reply, self._limits.keep_alive, extra)
            finally:
                self.streams -= 1
        else:
            await send_answer(send, reply, extra, head_only=scope["method"] == "HEAD")

    async def _respond(self, scope: Scope, receive: Receive) -> tuple[Reply, tuple[Header, ...]]:
        """The reply, and the headers that a browser needs with it."""
        headers = header_map(scope["headers"])
        refused = self._foreign(headers)
        if refused is not None:
            return refused, ()
        origin = headers.get("origin")
        if scope["method"] == "OPTIONS":
            return Answer(204), preflight_headers(origin, headers.get("access-control-request-headers"))
        return await self._reply(scope, headers, receive), cors_headers(origin)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket has the checks of every request before it is one, and none of a message's headers after."""
        found = self._admit(scope)
        if isinstance(found, Answer):
            self._answered("GET", found.status)
            await send_rejection(send, found)
            return
        endpoint, principal, converse = found
        self._answered("GET", 101)
        self.streams += 1
        try:
            await serve_websocket(scope, receive, send, converse, endpoint, principal, self._limits)
        finally:
            self.streams -= 1

    def _admit(self, scope: Scope) -> tuple[str, Principal, Converse] | Answer:
        headers = header_map(scope["headers"])
        refused = self._foreign(headers)
        if refused is not None:
            return refused
        principal = self._gate.principal(headers.get("authorization"))
        if principal is None:
            return _unauthorized("authorization" in headers)
        target = route(scope["path"], scope.get("raw_path", b""))
        if not isinstance(target, Ws) or self._converse is None or not self._known(target.endpoint):
            return refusal(404, "Not found: no WebSocket here")
        if self._overloaded():
            return refusal(503, "Overloaded, try again", ("Retry-After", "1"))
        refused = unfit(scope)
        return (target.endpoint, principal, self._converse) if refused is None else refused

    def _foreign(self, headers: Mapping[str, str]) -> Answer | None:
        """The refusal of a Host or an Origin that may not speak here."""
        if not self._gate.host_allowed(headers.get("host")):
            return refusal(403, "Forbidden: this Host is not served here")
        origin = headers.get("origin")
        if origin is not None and not self._gate.origin_allowed(origin):
            return refusal(403, "Forbidden: this Origin is not allowed")
        return None

    async def _reply(self, scope: Scope, headers: Mapping[str, str], receive: Receive) -> Reply:
        target = route(scope["path"], scope.get("raw_path", b""))
        method: str = scope["method"]
        if isinstance(target, Health):
            return _HEALTHY if method in {"GET", "HEAD"} else refusal(405, "Method not allowed", ("Allow", "GET, HEAD"))
        principal = self._gate.principal(headers.get("authorization"))
        if principal is None:
            return _unauthorized("authorization" in headers)
        if target is None or not self._known(target.endpoint):
            return refusal(404, "Not found: no such endpoint")
        if isinstance(target, Ws):
            return refusal(426, "Upgrade required: this is a WebSocket", ("Upgrade", "websocket"))
        self.calls += 1
        try:
            return await self._ask(target, method, principal, headers, receive)
        finally:
            self.calls -= 1

    async def _ask(
        self, target: Mcp, method: str, principal: Principal, headers: Mapping[str, str], receive: Receive
    ) -> Reply:
        if method == "POST":
            return await self._post(target, principal, headers, receive)
        if method == "GET":
            if not accepts(headers.get("accept", "")).events:
                return refusal(406, "Not acceptable: the client must accept text/event-stream")
            return await self._door.get(Get(target.endpoint, principal, headers))
        if method == "DELETE":
            return await self._door.delete(Delete(target.endpoint, principal, headers))
        return refusal(405, "Method not allowed", _ALLOW)

    async def _post(self, target: Mcp, principal: Principal, headers: Mapping[str, str], receive: Receive) -> Reply:
        if self._overloaded():
            return refusal(503, "Overloaded, try again", ("Retry-After", "1"))
        accepted = accepts(headers.get("accept", ""))
        if not (accepted.json and accepted.events):
            return refusal(406, "Not acceptable: the client must accept application/json and text/event-stream")
        if not is_json(headers.get("content-type", "")):
            return refusal(415, "Unsupported media type: Content-Type must be application/json")
        if headers.get("content-encoding", "identity").lower() != "identity":
            return refusal(415, "Unsupported content coding: the body must not be compressed", _CODING)
        with Share(self._room) as share:
            try:
                body = await read_body(headers, receive, self._limits.message_bytes, share)
            except NoRoomError:
                return refusal(503, "No room for a message of this size, try again", ("Retry-After", "1"))
            if body is None:
                return refusal(413, f"The message is larger than {self._limits.message_bytes} bytes")
            return await self._door.post(Post(target.endpoint, principal, headers, body))


def _unauthorized(tried: bool) -> Answer:
    challenge = 'Bearer realm="stagedoor"'
    if tried:
        challenge += ', error="invalid_token"'
    return refusal(401, "Unauthorized: a bearer token is required", ("WWW-Authenticate", challenge))
