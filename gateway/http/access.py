"""Records each HTTP request of an ASGI app with its answer, for those who want to know of all of them.

It stands before the app only where somebody does. What never became a request (a head that can't be read, one that came
too slowly, a connection too many) the connection tells by itself; what it answers in the app's place, because the rest
of a request did not come, is told here.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from actors.ports import SessionKey
from gateway.http.request import REFUSED, Receive, Scope, header_map, peer_of
from gateway.http.response import Send
from gateway.observability.access import CLIENT_GONE, Access

ACCESS: Final = "stagedoor.access"
"""In the scope of a request: its `Access`, for what only the app knows."""

Recorder = Callable[[Access], object]
"""Gets each request when it is over. Neither waits nor raises."""


class App(Protocol):
    """An ASGI app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def at_once(self, scope: Scope, body: bytes) -> bool:
        """As in `AtOnce`."""


class Recorded:
    """An ASGI app that tells of each request. `handle`: of a session id, what may be written of it."""

    def __init__(
        self,
        app: App,
        record: Recorder,
        handle: Callable[[str], SessionKey],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._record = record
        self._handle = handle
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access, began = self._access(scope), self._clock()

        async def seen(message: Mapping[str, Any]) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                access.status = message["status"]
            elif message["type"] == "websocket.accept":
                access.status = 101
            else:
                access.bytes += len(message.get("body") or message.get("bytes") or message.get("text") or b"")
            await send(message)

        try:
            await self._app({**scope, ACCESS: access}, receive, seen)
        finally:
            crashed = isinstance(sys.exc_info()[1], Exception)
            refused = scope.get("extensions", {}).get(REFUSED, {}).get("status")
            access.status = refused or access.status or (500 if crashed else CLIENT_GONE)
            access.ms = (self._clock() - began) * 1000
            self._record(access)

    def at_once(self, scope: Scope, body: bytes) -> bool:
        """As in `AtOnce`, if the app has such a way."""
        began = self._clock()
        taken = self._app.at_once(scope, body)
        if taken:
            access = self._access(scope)
            access.status, access.ms = 202, (self._clock() - began) * 1000
            self._record(access)
        return taken

    def _access(self, scope: Scope) -> Access:
        headers = header_map(scope["headers"])
        session, parent = headers.get("mcp-session-id", ""), headers.get("traceparent", "").split("-")
        return Access(
            time.time(),
            scope.get("method", "GET"),
            scope["path"],
            f"HTTP/{scope.get('http_version', '1.1')}",
            client=peer_of(scope),
            session=self._handle(session) if session else "",
            trace=parent[1] if len(parent) == 4 and len(parent[1]) == 32 else "",
            referer=headers.get("referer", "").partition("?")[0],
            agent=headers.get("user-agent", ""),
        )
