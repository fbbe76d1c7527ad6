"""A gateway in the process of the test that takes the tokens of an issuer, by its real edge, as ASGI.

    async with open_gateway(Backend("alpha")) as gateway, verified(gateway) as site:
        client = WireClient(site.http, token=site.token("ann", 100))     # of the user ann, for 100 seconds
        site.admit(tokens={"ci": "…"}, issuers=())                       # as a reload does

The wall clock is trio's, by which everything in it tells the time.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import trio

from actors.duplex import Duplex
from actors.ports import Rights
from actors.protocol.issuers import Issuer
from actors.protocol.table import Limits
from actors.sessions.router import Alive
from gateway.http.app import McpApp
from gateway.http.authorization import Authorization, Resource
from gateway.http.rounds import ROUNDS, Rounds
from gateway.http.security import Security
from gateway.oauth.verifier import TokenVerifier
from gateway.revoking import Revoked
from tests.support.harness import Gateway
from tests.support.issuer import FakeIssuer
from tests.support.wire_http import AsgiHttp

BASE = "https://mcp.test"
ISSUER = "https://idp.test"


@dataclass
class Site:
    """One replica with its edge. `flush`: its store loses everything."""

    gateway: Gateway
    nursery: trio.Nursery
    idp: FakeIssuer
    revoked: Revoked
    app: McpApp = field(init=False)
    http: AsgiHttp = field(init=False)
    flush: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        actors, limits = self.gateway.actors, self.gateway.services.limits
        self.app = McpApp(
            self.gateway.door,
            Security("127.0.0.1"),
            limits,
            converse=Duplex(self.gateway.door, limits),
            post=actors.channels,
            known=lambda name: name in actors.services.table.value.endpoints,
            wall=trio.current_time,
            sees=lambda endpoint, asker: actors.gate.serves(endpoint, asker.principal, asker.rights),
        )
        self.http = AsgiHttp(self.app, self.nursery)
        self.admit()

    def admit(
        self,
        tokens: Mapping[str, str] | None = None,
        issuers: Sequence[Issuer] = (Issuer(ISSUER),),
        rights: Mapping[str, Rights] = MappingProxyType({}),
    ) -> None:
        """Lets these in from now on."""
        verifier = TokenVerifier(
            issuers, self.idp, self.nursery, self.gateway.log, self.gateway.telemetry, trio.current_time
        )
        resource = Resource(BASE, tuple(one.issuer for one in issuers))
        both = {"resource": resource, "verifier": verifier} if issuers else {}
        authorize = partial(Authorization, revocations=self.revoked, **both)  # type: ignore[arg-type]
        self.app.admit(Security("127.0.0.1", tokens=tokens, rights=rights), authorize)

    def token(self, user: str, seconds: float = 600, **claims: Any) -> str:
        """A good one."""
        now = trio.current_time()
        return self.idp.token(**{"sub": user, "iat": now, "exp": now + seconds, "aud": BASE, **claims})

    @property
    def sessions(self) -> list[Alive]:
        """Those that are in its memory."""
        return list(self.gateway.actors.sessions.table.values())

    async def socket(self, path: str, token: str) -> Socket:
        """A WebSocket, with its handshake done."""
        opened = Socket()
        self.nursery.start_soon(opened.run, self.app, path, token)
        await opened.answered.wait()
        return opened


class Socket:
    """A WebSocket as ASGI has it. `closed` is its close code."""

    def __init__(self) -> None:
        self._ready: Callable[[], object] = lambda: None
        self._in, self._app_in = trio.open_memory_channel[Any](100)
        self._app_out, self._out = trio.open_memory_channel[Any](100)
        self.answered = trio.Event()
        self.over = trio.Event()
        self.status = 0
        self.closed = 0

    async def run(self, app: Any, path: str, token: str) -> None:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
        scope: dict[str, Any] = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "headers": headers,
            "query_string": b"",
        }
        scope |= {"valid": True, "subprotocols": ["mcp"], "socket": self, ROUNDS: Rounds()}
        async with scope[ROUNDS].going():
            await app(scope, self._app_in.receive, self._take)
        self.over.set()

    @property
    def heard(self) -> float:
        return trio.current_time()

    @property
    def waiting(self) -> bool:
        return self._in.statistics().current_buffer_used > 0

    def listen(self, ready: Callable[[], object]) -> None:
        self._ready = ready

    def wake(self) -> None:
        self._put({"type": "websocket.woken"})

    def _put(self, message: Mapping[str, Any]) -> None:
        self._in.send_nowait(message)
        if self.waiting:
            self._ready()

    async def _take(self, message: Mapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        match message["type"]:
            case "websocket.accept":
                self.status = 101
            case "websocket.http.response.start":
                self.status = message["status"]
            case "websocket.send":
                self._app_out.send_nowait(json.loads(message["text"]))
            case "websocket.close":
                self.closed = message["code"]
        self.answered.set()

    def say(self, id: int | None, method: str, params: Mapping[str, Any] | None = None) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}, **({} if id is None else {"id": id})}
        self._put({"type": "websocket.receive", "text": json.dumps(message)})

    async def next(self) -> Any:
        with trio.fail_after(60):
            return await self._out.receive()

    async def ask(self, id: int, method: str, params: Mapping[str, Any] | None = None) -> Any:
        self.say(id, method, params)
        while (message := await self.next()).get("id") != id or "method" in message:
            pass
        return message

    async def initialize(self) -> None:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await self.ask(0, "initialize", client)
        self.say(None, "notifications/initialized")


@asynccontextmanager
async def verified(gateway: Gateway, idp: FakeIssuer | None = None) -> AsyncIterator[Site]:
    """The edge of this gateway, with what takes access away."""
    if trio.current_time() < 1:
        await trio.sleep(1)  # 0 is no date
    async with trio.open_nursery() as nursery:
        revoked = Revoked(gateway.store.shelf, gateway.actors, gateway.log, trio.current_time)  # type: ignore[attr-defined]
        nursery.start_soon(revoked.run)
        yield Site(gateway, nursery, idp if idp is not None else FakeIssuer(), revoked)
        nursery.cancel_scope.cancel()


__all__ = ["BASE", "ISSUER", "Limits", "Site", "Socket", "verified"]
