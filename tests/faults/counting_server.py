"""An MCP server that writes down each execution, in a file that outlives it: `counting_server.py FILE [PORT]`.

Over stdio, or over Streamable HTTP on PORT. Tools: `quick` answers at once, `slow` logs, waits, and answers. Standard
library only, a thread for each request, so that it can be killed at any moment without remorse.
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

SLOW = 0.7  # seconds
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("quick", "slow")]
FILE = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def answer(message: Message, say: Say) -> None:
    """Says all that there is to say to a request."""
    params = message.get("params", {})
    match message["method"]:
        case "initialize":
            info = {"name": "counting", "version": "1"}
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": info,
            }
        case "tools/list":
            result = {"tools": TOOLS}
        case "tools/call":
            result = call(params["name"], params["arguments"]["key"], say)
        case _:
            result = {}
    say({"id": message["id"], "result": result})


def call(name: str, key: str, say: Say) -> Message:
    """One execution, written down before anything else."""
    os.write(FILE, f"{key}\n".encode())
    if name == "slow":
        for step in (1, 2):
            say({"method": "notifications/message", "params": {"level": "info", "data": {"key": key, "step": step}}})
            time.sleep(SLOW / 2)
    return {"content": [{"type": "text", "text": f"{name} {key}"}]}


def encoded(message: Message) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def over_stdio() -> None:
    lock = threading.Lock()

    def say(message: Message) -> None:
        with lock:
            os.write(1, encoded(message) + b"\n")

    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            threading.Thread(target=answer, args=(message, say), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Streamable HTTP, as much as is needed: every answer is a stream."""

    protocol_version = "HTTP/1.1"
    sessions: set[str] = set()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        session = self.headers.get("Mcp-Session-Id")
        if message.get("method") == "initialize":
            session = uuid.uuid4().hex
            self.sessions.add(session)
        if session not in self.sessions:
            self._end(404)
        elif "id" not in message or "method" not in message:
            self._end(202)
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Mcp-Session-Id", session)
            self.send_header("Connection", "close")
            self.end_headers()
            answer(message, lambda said: self._event(said))
            self.close_connection = True

    def _event(self, message: Message) -> None:
        self.wfile.write(b"data: " + encoded(message) + b"\n\n")

    def do_GET(self) -> None:
        self._end(405)

    def do_DELETE(self) -> None:
        self.sessions.discard(self.headers.get("Mcp-Session-Id", ""))
        self._end(200)

    def _end(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
    else:
        over_stdio()
