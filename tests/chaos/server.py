"""An MCP server to be killed at any moment, which writes down what it executes: `server.py NAME LOG [PORT] [--ids]`.

Over stdio, or over Streamable HTTP on PORT; `--ids` gives its events ids, keeps them, and lets a stream be resumed.
Each argument `key` names one call; everything that comes of the call carries it. Tools: `quick` answers at once; `work`
says `steps` times how far it is; `ask` puts a form to the user first, and gives back what was filled in. Each resource
that is subscribed to changes every `TICK` seconds.

Lines of the log: time, server, word, key, detail. `executed` is written before anything else is done.

Standard library only, a thread for each request: it starts quickly, and has nothing to tidy up.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]
Say = Callable[[Message], None]

NAME, LOG = sys.argv[1:3]
IDS = "--ids" in sys.argv
TICK = 1.0  # seconds
PATIENCE = 3600.0  # seconds for an answer of the user: longer than any client waits, however slow the machine is
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("quick", "work", "ask")]
FORM = {"type": "object", "properties": {"key": {"type": "string"}}}
FILE = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(what: str, key: str, detail: str = "") -> None:
    os.write(FILE, f"{time.monotonic():.3f}\t{NAME}\t{what}\t{key}\t{detail}\n".encode())


def encoded(message: Message) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


class Session:
    """What one client of this server has; `say` is for what belongs to none of its requests."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.streams: dict[str, Stream] = {}
        self._subscribed: set[str] = set()
        self._asked: dict[str, tuple[threading.Event, list[Message]]] = {}
        self._told = 0

    def tick(self) -> None:
        """Every resource has changed."""
        for uri in list(self._subscribed):
            self._told += 1
            self.say({"method": "notifications/resources/updated", "params": {"uri": uri}})

    def take(self, answer: Message) -> None:
        """The client's answer to a question."""
        event, box = self._asked.pop(str(answer.get("id")), (threading.Event(), []))
        box.append(answer)
        event.set()

    def answer(self, message: Message, say: Say) -> None:
        """Says all that there is to say to a request."""
        params = message.get("params") or {}
        say({"id": message["id"], "result": self._result(message["method"], params, say)})

    def _result(self, method: str, params: Message, say: Say) -> Message:
        match method:
            case "initialize":
                capabilities = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}
                info = {"name": NAME, "version": "1"}
                version = params["protocolVersion"]
                return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
            case "tools/list":
                return {"tools": TOOLS}
            case "resources/list":
                return {"resources": []}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": f"{NAME}:///{{who}}", "name": "of everyone"}]}
            case "prompts/list":
                return {"prompts": []}
            case "resources/subscribe":
                self._subscribed.add(params["uri"])
            case "resources/unsubscribe":
                self._subscribed.discard(params["uri"])
            case "tools/call":
                return self._call(params, say)
        return {}

    def _call(self, params: Message, say: Say) -> Message:
        arguments = params["arguments"]
        key = arguments["key"]
        note("executed", key)
        words = f"{params['name']} {key}"
        if params["name"] == "ask":
            words += f" {self._ask(key, say)}"
        token = (params.get("_meta") or {}).get("progressToken")
        for step in range(1, arguments.get("steps", 0) + 1):
            time.sleep(arguments["pause"])
            if token is not None:
                told = {"progressToken": token, "progress": step, "message": key}
                say({"method": "notifications/progress", "params": told})
        note("finished", key)
        return {"content": [{"type": "text", "text": words}]}

    def _ask(self, key: str, say: Say) -> str:
        id, event, box = f"ask-{uuid.uuid4().hex}", threading.Event(), list[Message]()
        self._asked[id] = event, box
        say({"id": id, "method": "elicitation/create", "params": {"message": key, "requestedSchema": FORM}})
        event.wait(PATIENCE)
        filled_in = ((box[0].get("result") or {}).get("content") or {}).get("key", "refused") if box else "nothing"
        note("answered", key, filled_in)
        return str(filled_in)


# Over stdio ------------------------------------------------------------------------------------------------------


def over_stdio() -> None:
    lock = threading.Lock()

    def say(message: Message) -> None:
        with lock:
            os.write(1, encoded(message) + b"\n")

    session = Session(say)
    note("started", str(os.getpid()))
    threading.Thread(target=ticking, args=([session],), daemon=True).start()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message:
            session.take(message)
        elif "id" in message:
            threading.Thread(target=session.answer, args=(message, say), daemon=True).start()


def ticking(sessions: list[Session]) -> None:
    while True:
        time.sleep(TICK)
        for session in list(sessions):
            session.tick()


# Over HTTP -------------------------------------------------------------------------------------------------------


class Stream:
    """What is said on one stream, and its place in the event ids."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._said: list[bytes] = []
        self._over = False
        self._changed = threading.Condition()
        self._readers = 0

    def say(self, message: Message) -> None:
        self._add(encoded(message))

    def prime(self) -> None:
        """An event without data, so that there is an id from the start."""
        self._add(b"")

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _add(self, data: bytes) -> None:
        with self._changed:
            self._said.append(data)
            self._changed.notify_all()

    def read(self, after: int | None, write: Callable[[bytes], Any]) -> None:
        """Writes what was said after so many events, and what is said from now on, until its end or until another one
        reads. None: only what is new."""
        with self._changed:
            self._readers += 1
            me, next = self._readers, len(self._said) if after is None else after
            self._changed.notify_all()
        while True:
            with self._changed:
                while next >= len(self._said) and not self._over and me == self._readers:
                    self._changed.wait()
                if me != self._readers:
                    return
                fresh, over = self._said[next:], self._over
            for data in fresh:
                next += 1
                id = f"id: {self.name}/{next}\n".encode() if IDS else b""
                write(id + b"data: " + data + b"\n\n")
            if over and not fresh:
                return


SESSIONS: dict[str, Session] = {}
ALL: list[Session] = []


class Handler(BaseHTTPRequestHandler):
    """Streamable HTTP, as much as is needed."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if message.get("method") == "initialize":
            self._begin(message)
            return
        session = SESSIONS.get(self.headers.get("Mcp-Session-Id", ""))
        if session is None:
            self._end(404)
        elif "method" not in message:
            session.take(message)
            self._end(202)
        elif "id" not in message:
            self._end(202)
        elif message["method"] == "tools/call" and message["params"]["name"] != "quick":
            self._stream(session, message)
        else:
            said: list[Message] = []
            session.answer(message, said.append)
            self._end(200, encoded(said[-1]))

    def _begin(self, message: Message) -> None:
        name, unasked = uuid.uuid4().hex, Stream("get")
        session = SESSIONS[name] = Session(unasked.say)
        session.streams["get"] = unasked
        ALL.append(session)
        said: list[Message] = []
        session.answer(message, said.append)
        self._end(200, encoded(said[0]), name)

    def _stream(self, session: Session, message: Message) -> None:
        stream = Stream(uuid.uuid4().hex)
        session.streams[stream.name] = stream
        if IDS:
            stream.prime()

        def run() -> None:
            session.answer(message, stream.say)
            stream.end()

        threading.Thread(target=run, daemon=True).start()
        self._events(stream, 0)

    def do_GET(self) -> None:
        session = SESSIONS.get(self.headers.get("Mcp-Session-Id", ""))
        name, _, place = (self.headers.get("Last-Event-ID") or "get/").partition("/")
        if session is None or name not in session.streams:
            self._end(404)
        else:
            self._events(session.streams[name], int(place) if place else None)

    def _events(self, stream: Stream, after: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        try:
            stream.read(after, self.wfile.write)
        except OSError:
            return  # the other side has gone

    def do_DELETE(self) -> None:
        session = SESSIONS.pop(self.headers.get("Mcp-Session-Id", ""), None)
        if session is not None:
            ALL.remove(session)
        self._end(200)

    def _end(self, status: int, body: bytes = b"", session: str = "") -> None:
        self.send_response(status)
        if body:
            self.send_header("Content-Type", "application/json")
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is nobody's concern."""


if __name__ == "__main__":
    if len(sys.argv) > 3:
        threading.Thread(target=ticking, args=(ALL,), daemon=True).start()
        Server(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
    else:
        over_stdio()
