"""Streamable HTTP as a scripted backend has it, in both eras: an answer is a stream when something came before the
result. In the era without sessions a connection that is closed cancels its request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from itertools import count
from typing import Any

import h11
import trio

from tests.interaction.backend import Backend, Connection, HttpAnswer, Id
from tests.interaction.era_backend import ModernConnection
from tests.support import modern_rules as rules
from tests.support.schemas import MODERN

BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


class _Body:
    """A message stream of one HTTP answer."""

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[bytes](100_000)


class HttpSession:
    """What one `Mcp-Session-Id` stands for, or, without an id, all requests that have no session."""

    def __init__(self, number: int) -> None:
        self.id = f"backend-session-{number}"
        self.posts: dict[Id, _Body] = {}
        self.unrelated = _Body()
        self.connection: Connection

    def write(self, frame: bytes, related: Id | None) -> None:
        body = self.posts.get(related) if related is not None else None
        if body is None:
            self.unrelated.send.send_nowait(frame)
            return
        body.send.send_nowait(frame)
        with suppress(ValueError):
            message = json.loads(frame)
            if isinstance(message, dict) and message.get("id") == related and "method" not in message:
                body.send.close()


class HttpServer:
    """One host and port, with a backend at each path."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._places = {path: _Endpoint(backend) for path, backend in backends.items()}

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection."""
        wire = Http1(stream)
        with suppress(*BROKEN):
            while (request := await wire.next_request()) is not None:
                headers = {name.decode().lower(): value.decode() for name, value in request.headers}
                body = await wire.body()
                await self._places[request.target.decode()].handle(wire, request.method.decode(), headers, body)
                wire.next_cycle()
        await stream.aclose()


class SseServer:
    """One backend at `/sse`, as HTTP+SSE of 2024-11-05 has it."""

    def __init__(self, backend: Backend, endpoint: str = "/messages?session={}") -> None:
        self._backend = backend
        self._endpoint = endpoint
        self._sessions: dict[str, _SseSession] = {}
        self._numbers = count(1)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection."""
        wire = Http1(stream)
        with suppress(*BROKEN):
            while (request := await wire.next_request()) is not None:
                self._backend.headers.append({name.decode().lower(): value.decode() for name, value in request.headers})
                body, target = await wire.body(), request.target.decode()
                if target != "/sse":
                    await self._post(wire, target, body)
                elif request.method == b"GET":
                    await self._stream(wire)
                else:
                    await wire.answer(405)
                wire.next_cycle()
        await stream.aclose()

    async def _post(self, wire: Http1, target: str, body: bytes) -> None:
        session = self._sessions.get(target.rpartition("=")[2])
        if session is not None:
            session.connection.feed(body)
        await wire.answer(202 if session is not None else 404)

    async def _stream(self, wire: Http1) -> None:
        name = str(next(self._numbers))
        session = self._sessions[name] = _SseSession(self._backend)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.wait_closed, nursery.cancel_scope)
                nursery.start_soon(session.cancel_when_ended, nursery.cancel_scope)
                with suppress(*BROKEN):
                    await wire.stream(session.messages.receive, endpoint=self._endpoint.format(name).encode())
        finally:
            del self._sessions[name]
            session.end()
        raise trio.BrokenResourceError


class _SseSession:
    """One stream. Who only looks whether it is there begins no connection."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.messages = _Body()
        self.ended = trio.Event()

    @cached_property
    def connection(self) -> Connection:
        """From the first message on."""
        connection = self._backend.connected(lambda frame, related: self.messages.send.send_nowait(frame))
        connection.hang_up = self.end
        return connection

    async def cancel_when_ended(self, scope: trio.CancelScope) -> None:
        await self.ended.wait()
        scope.cancel()

    def end(self) -> None:
        self.ended.set()
        if "connection" in self.__dict__:
            self.connection.end()


class _Endpoint:
    """One backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sessions: dict[str, HttpSession] = {}
        self._numbers = count(1)
        self._all: HttpSession | None = None
        """The requests without a session."""

    async def handle(self, wire: Http1, method: str, headers: dict[str, str], body: bytes) -> None:
        """One request."""
        self._backend.headers.append(headers)
        known = headers.get("mcp-session-id")
        session = self._sessions.get(known or "")
        if known is not None and session is None:
            await wire.answer(404)
        elif method == "POST":
            await self._post(wire, session, headers, json.loads(body), body)
        elif session is None:
            await wire.answer(400 if self._backend.sessions else 405)
        elif method == "GET":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.wait_closed, nursery.cancel_scope)
                with suppress(*BROKEN):
                    await wire.stream(session.unrelated.receive)
        else:
            session.connection.end()
            await wire.answer(200)

    async def _post(
        self, wire: Http1, session: HttpSession | None, headers: dict[str, str], message: Any, body: bytes
    ) -> None:
        special = self._backend.http_answers.get(message.get("method"))
        if special:
            await self._answer_specially(wire, session, special.pop(0))
        elif session is None and "id" not in message and self._backend.modern:
            if headers["mcp-protocol-version"] == MODERN:
                connection = self._without_session().connection
                assert isinstance(connection, ModernConnection)
                connection.feed(body, headers)
            await wire.answer(202)
        elif session is None and self._modern(message):
            await self._exchange(wire, self._without_session(), headers, message, body)
        elif session is None and message.get("method") != "initialize":
            await wire.answer(400)
        elif "method" not in message or "id" not in message:
            assert session is not None
            session.connection.feed(body)
            await wire.answer(202)
        else:
            session = session or self._open()
            answer = session.posts[message["id"]] = _Body()
            session.connection.feed(body)
            header = [("Mcp-Session-Id", session.id)] if message["method"] == "initialize" else []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_when_ended, session.connection, nursery.cancel_scope)
                with suppress(*BROKEN):
                    await self._answer(wire, answer, header)
                nursery.cancel_scope.cancel()
            if not wire.answered:
                raise trio.BrokenResourceError

    def _modern(self, message: Any) -> bool:
        """Whether a message is for the era without sessions, or there is no other."""
        if message.get("method") == "initialize":
            return not self._backend.sessions
        return self._backend.modern and rules.VERSION in message.get("params", {}).get("_meta", {})

    def _without_session(self) -> HttpSession:
        if self._all is None or self._all.connection.ended.is_set():
            self._all = HttpSession(0)
            self._all.connection = self._backend.connected(self._all.write)
            self._all.connection.hang_up = self._all.connection.end
        return self._all

    async def _exchange(
        self, wire: Http1, session: HttpSession, headers: dict[str, str], message: Any, body: bytes
    ) -> None:
        """A request that has its connection to itself."""
        assert isinstance(session.connection, ModernConnection)
        id = message["id"]
        answer = session.posts[id] = _Body()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wire.wait_closed, nursery.cancel_scope)
                nursery.start_soon(_when_ended, session.connection, nursery.cancel_scope)
                session.connection.feed(body, headers)
                with suppress(*BROKEN):
                    await self._answer(wire, answer, [("X-Accel-Buffering", "no")])
                nursery.cancel_scope.cancel()
        finally:
            session.connection.cut(id)
        if not wire.answered:
            raise trio.BrokenResourceError

    async def _answer_specially(self, wire: Http1, session: HttpSession | None, answer: HttpAnswer) -> None:
        if answer.lost and session is not None:
            self._forget(session)
        await wire.answer(answer.status, answer.body, [("Content-Type", answer.kind)])

    async def _answer(self, wire: Http1, body: _Body, header: list[tuple[str, str]]) -> None:
        first = await body.receive.receive()
        if body.receive.statistics().open_send_channels == 0 and not body.receive.statistics().current_buffer_used:
            await wire.answer(self._status(first), first, [("Content-Type", "application/json"), *header])
        else:
            await wire.stream(body.receive, header, first)

    def _status(self, answer: bytes) -> int:
        if not self._backend.modern or self._backend.sessions:
            return 200
        error = json.loads(answer).get("error")
        return 200 if error is None else rules.STATUS.get(error["code"], 200)

    def _forget(self, session: HttpSession) -> None:
        """As a restart of the server would."""
        self._sessions.pop(session.id, None)
        session.connection.end()

    def _open(self) -> HttpSession:
        session = HttpSession(next(self._numbers))  # an id is never given twice: one that was forgotten stays unknown
        session.connection = self._backend.connected(session.write)
        session.connection.hang_up = lambda: self._forget(session)
        self._sessions[session.id] = session
        return session


async def _when_ended(connection: Connection, scope: trio.CancelScope) -> None:
    await connection.ended.wait()
    scope.cancel()


def _event(message: bytes) -> bytes:
    return b"".join(b"data: %b\n" % line for line in message.split(b"\n")) + b"\n"


class Http1:
    """h11 over a socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.SERVER)

    async def _event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await self._stream.receive_some(65536))
        return event

    async def next_request(self) -> h11.Request | None:
        event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> bytes:
        body = b""
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
        return body

    async def wait_closed(self, scope: trio.CancelScope) -> None:
        """Cancels when the client closes the connection; what else comes is the next request."""
        with suppress(*BROKEN):
            while data := await self._stream.receive_some(65536):
                self._h11.receive_data(data)
        scope.cancel()

    @property
    def answered(self) -> bool:
        """Whether the present answer is whole."""
        return self._h11.our_state is h11.DONE

    async def answer(self, status: int, body: bytes = b"", headers: list[tuple[str, str]] | None = None) -> None:
        await self._send(
            h11.Response(status_code=status, headers=[*(headers or []), ("Content-Length", str(len(body)))])
        )
        await self._send(h11.Data(data=body), h11.EndOfMessage())

    async def stream(
        self,
        messages: trio.MemoryReceiveChannel[bytes],
        headers: list[tuple[str, str]] | None = None,
        first: bytes | None = None,
        *,
        endpoint: bytes | None = None,
    ) -> None:
        kind = ("Content-Type", "text/event-stream")
        await self._send(h11.Response(status_code=200, headers=[kind, *(headers or [])]))
        if endpoint is not None:
            await self._send(h11.Data(data=b"event: endpoint\n" + _event(endpoint)))
        if first is not None:
            await self._send(h11.Data(data=_event(first)))
        async for message in messages:
            await self._send(h11.Data(data=_event(message)))
        await self._send(h11.EndOfMessage())

    async def _send(self, *events: Any) -> None:
        for event in events:
            data = self._h11.send(event)
            if data:
                await self._stream.send_all(data)

    def next_cycle(self) -> None:
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
