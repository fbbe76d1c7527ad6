"""Real gateways, servers and clients, each test's own."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.patience import PATIENCE
from tests.support.processes import Gateway, programs
from tests.support.raw import RawSession, SseEvent, Stream

__all__ = ["programs"]

Message = dict[str, Any]


def eventually(condition: Callable[[], Any], within: float = PATIENCE) -> None:
    """Waits; raises AssertionError if that does not come true."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.02)


# A server whose tools do what the test says ------------------------------------------------------------------------


class Call:
    """A call of `steps` that has arrived."""

    def __init__(self) -> None:
        self.orders: queue.Queue[str | None] = queue.Queue()

    def say(self, *texts: str) -> None:
        """It logs."""
        for text in texts:
            self.orders.put(text)

    def finish(self) -> None:
        """It answers `done`."""
        self.orders.put(None)


class Backend:
    """Tools: `quick` answers at once, `steps` when it is told to. `executions` are counted by the call's key;
    `sessions` are the ids that it gave out, `credentials` what it was shown."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.executions: list[str] = []
        self.sessions: list[str] = []
        self.credentials: set[str | None] = set()
        backend = self

        class Handler(_Handler):
            owner = backend

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.config = {
            "mcpServers": {"alpha": {"type": "http", "url": f"http://127.0.0.1:{self._server.server_port}/mcp"}}
        }
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def call(self, key: str) -> Call:
        """The call with that key, once it is there."""
        eventually(lambda: key in self.calls)
        return self.calls[key]

    def stop(self) -> None:
        for call in self.calls.values():
            call.finish()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Backend

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.owner.credentials.add(self.headers["Authorization"])
        params = message.get("params", {})
        if "id" not in message or "method" not in message:
            self._whole(202, b"")
        elif message["method"] == "tools/call":
            self._call(message["id"], params["name"], params["arguments"]["key"])
        else:
            result: Message = {}
            if message["method"] == "initialize":
                info, capabilities = {"name": "alpha", "version": "1"}, {"tools": {}, "logging": {}}
                version = params["protocolVersion"]
                result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
            elif message["method"] == "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("quick", "steps")]}
            self._whole(200, _encoded({"id": message["id"], "result": result}))

    def _call(self, id: Any, name: str, key: str) -> None:
        self.owner.executions.append(key)
        answer = {"id": id, "result": {"content": [{"type": "text", "text": f"done {key}"}]}}
        if name == "quick":
            return self._whole(200, _encoded(answer))
        call = self.owner.calls[key] = Call()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        while (text := call.orders.get()) is not None:
            note = {"method": "notifications/message", "params": {"level": "info", "data": text}}
            self.wfile.write(b"data: " + _encoded(note) + b"\n\n")
        self.wfile.write(b"data: " + _encoded(answer) + b"\n\n")
        self.close_connection = True
        return None

    def _whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.owner.sessions.append(uuid.uuid4().hex)
        self.send_header("Mcp-Session-Id", self.owner.sessions[-1])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._whole(405, b"")

    def do_DELETE(self) -> None:
        self._whole(200, b"")

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


def _encoded(message: Message) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


# Clients -----------------------------------------------------------------------------------------------------------


class Reading:
    """An SSE answer that is read as it comes."""

    def __init__(self, stream: Stream) -> None:
        self.events: list[SseEvent] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: Stream) -> None:
        with stream:
            try:
                self.events += ()
                for event in stream.events():
                    self.events.append(event)
            except (OSError, http.client.HTTPException):
                return

    @property
    def said(self) -> list[Any]:
        """What was logged, and the answer: `done`, or the code and reason of an error."""
        return [_short(event.message) for event in self.events if event.message is not None]

    @property
    def ids(self) -> list[str | None]:
        return [event.id for event in self.events]

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, *said: Any, within: float = PATIENCE) -> None:
        """Until exactly that has come."""
        end = time.monotonic() + within
        while self.said != list(said):
            assert time.monotonic() < end, f"{self.said} instead of {said}"
            time.sleep(0.02)

    def wait_over(self, within: float = PATIENCE) -> None:
        self._thread.join(within)
        assert self.over, f"still open: {self.said}"


def _short(message: Message) -> Any:
    if "method" in message:
        return message["params"]["data"]
    if "error" in message:
        return message["error"]
    return message["result"]["content"][0]["text"]


class Door:
    """A gateway as its clients and its operator see it."""

    def __init__(self, gateway: Gateway, backend: Backend) -> None:
        self.gateway = gateway
        self.backend = backend
        self._keys = 0
        self.last_stream = ""
        """The key of the last call that `steps` made."""

    eventually = staticmethod(eventually)

    def session(self) -> RawSession:
        return RawSession(self.gateway.endpoint("alpha"))

    def refused(self) -> dict[str, str]:
        """The headers of the 503 that a client gets which would begin a session, and the message of its error."""
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _INTRODUCTION}
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        request = urllib.request.Request(
            self.gateway.endpoint("alpha"), json.dumps(message).encode(), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                raise AssertionError(f"a session began: {response.status}")
        except urllib.error.HTTPError as error:
            assert error.code == 503, error  # noqa: PT017 - the exception is the answer
            message = json.loads(error.read())["error"]["message"]
            return {name.lower(): value for name, value in error.headers.items()} | {"message": message}

    def quick(self, session: RawSession) -> None:
        """A call that is answered at once is, as JSON."""
        key = self._key()
        response, answer = session.post(_call_of(7, "quick", key))
        assert (response.status, response.headers.get_content_type()) == (200, "application/json"), answer
        assert answer["result"]["content"][0]["text"] == f"done {key}"

    def steps(self, session: RawSession) -> tuple[Reading, Call]:
        """A call that is answered by a stream."""
        key = self.last_stream = self._key()
        message = _call_of(100 + self._keys, "steps", key)
        connection = session.post_and_leave(message)
        call = self.backend.call(key)
        response = connection.getresponse()
        assert response.headers.get_content_type() == "text/event-stream", response.read()
        return Reading(Stream(connection, response)), call

    def begin(self, session: RawSession) -> Callable[[], Message]:
        """A call of `steps` that is never told to finish; what is returned waits for its answer, which is no stream."""
        key = self._key()
        connection = session.post_and_leave(_call_of(100 + self._keys, "steps", key))

        def answered() -> Message:
            response = connection.getresponse()
            answer: Message = json.loads(response.read())
            connection.close()
            return answer

        return answered

    @property
    def last_key(self) -> str:
        """Of the last call."""
        return f"k{self._keys}"

    def _key(self) -> str:
        self._keys += 1
        return self.last_key

    def resume(self, session: RawSession, after: str | None) -> Reading:
        return Reading(session.listen(after=after))

    def status(self, session: RawSession, after: str | None = None) -> tuple[int, dict[str, str], Message]:
        """What a client gets that resumes a stream, or else asks for something, and is not let."""
        if after is not None:
            connection = session.send("GET", None, {"Accept": "text/event-stream", "Last-Event-ID": after})
            response = connection.getresponse()
            body = response.read() if response.status != 200 else b""
            connection.close()
            answer = json.loads(body) if body else {}
        else:
            response, answer = session.post({"jsonrpc": "2.0", "id": 8, "method": "tools/list"})
        return response.status, {name.lower(): value for name, value in response.headers.items()}, answer

    def ready(self) -> Message:
        """The body of /readyz, which is always 200."""
        with urllib.request.urlopen(f"{self.gateway.admin}/readyz", timeout=PATIENCE) as response:
            assert response.status == 200
            body: Message = json.load(response)
            return body

    def degraded(self) -> bool:
        return bool(self.ready()["degraded"])


_INTRODUCTION = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "new", "version": "1"}}


def _call_of(id: int, name: str, key: str) -> Message:
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": {"key": key}}}


@pytest.fixture
def backend() -> Iterator[Backend]:
    running = Backend()
    yield running
    running.stop()


@pytest.fixture
def open_door(programs: Any, backend: Backend) -> Callable[[str], Door]:
    """A gateway on the Redis of that URL."""
    return lambda url: Door(programs.gateway(backend.config, "--store", url), backend)
