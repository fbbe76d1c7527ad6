"""A server whose every answer can be checked: `honest_server.py legacy|modern [PORT]`, over HTTP on PORT, else stdio.

What a tool says is computed from its arguments (`answers.py`). `steps` reports progress, `elicit` asks its client.
Standard library only, a thread for each request.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import answers

Message = dict[str, Any]
Say = Callable[[Message], None]

MODERN = sys.argv[1] == "modern"
INFO = {"name": "honest", "version": "1"}
CAPABILITIES: Message = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "prompts": {}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

asked: dict[Any, queue.Queue[Message]] = {}
"""Questions of ours that have no answer yet."""


def result_of(message: Message, say: Say) -> Message:
    params = message.get("params") or {}
    match message["method"]:
        case "initialize":
            return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": INFO}
        case "server/discover":
            return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "serverInfo": INFO, **kept()}
        case "tools/list":
            return {"tools": answers.TOOLS, **kept()}
        case "tools/call":
            return call(params, say)
        case "resources/list":
            return {"resources": answers.RESOURCES, **kept()}
        case "resources/templates/list":
            return {"resourceTemplates": [], **kept()}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": answers.resource(params["uri"])}], **kept()}
        case "prompts/list":
            return {"prompts": answers.PROMPTS, **kept()}
        case "prompts/get":
            said = answers.prompt(params["arguments"]["topic"])
            return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
    return {}


def kept() -> Message:
    return {"ttlMs": 60000, "cacheScope": "public"} if MODERN else {}


def call(params: Message, say: Say) -> Message:
    arguments = params.get("arguments") or {}
    match params["name"]:
        case "echo":
            return text(answers.echo(arguments["value"]))
        case "steps":
            token = (params.get("_meta") or {}).get("progressToken")
            for step in range(1, answers.STEPS + 1):
                if token is not None:
                    progress = {"progressToken": token, "progress": step, "message": f"{step} {arguments['value']}"}
                    say({"method": "notifications/progress", "params": progress})
                time.sleep(0.02)
            return text(answers.steps(arguments["value"]))
        case "elicit":
            question = answers.question(arguments["value"])
            if not MODERN:
                return text(answers.elicited(arguments["value"], ask(question, say)["result"]))
            if "it" in (params.get("inputResponses") or {}):
                return text(answers.elicited(params["requestState"], params["inputResponses"]["it"]))
            wanted = {"it": {"method": "elicitation/create", "params": question}}
            return {"resultType": "input_required", "inputRequests": wanted, "requestState": arguments["value"]}
    return {"content": [{"type": "text", "text": "no such tool"}], "isError": True}


def text(said: str) -> Message:
    return {"content": [{"type": "text", "text": said}]}


def ask(question: Message, say: Say) -> Message:
    id, answer = uuid.uuid4().hex, queue.Queue[Message]()
    asked[id] = answer
    say({"id": id, "method": "elicitation/create", "params": question})
    try:
        return answer.get(timeout=60)
    finally:
        del asked[id]


def handle(message: Message, say: Say) -> None:
    """Says all that there is to say to a message."""
    if "method" not in message:
        if (waiting := asked.get(message.get("id"))) is not None:
            waiting.put(message)
        return
    if "id" not in message:
        return
    try:
        result = result_of(message, say)
        if MODERN:
            result = {"resultType": "complete", **result}
        say({"id": message["id"], "result": result})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        say({"id": message["id"], "error": {"code": -32602, "message": f"not understood: {error}"}})


def encoded(message: Message) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message or "method" not in message:
            handle(message, lambda _: None)
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wrong = "initialize" if MODERN else "server/discover"
        if message["method"] == wrong:
            error = {"code": -32601, "message": "Method not found"}
            self.answer(404 if MODERN else 200, encoded({"id": message["id"], "error": error}))
            return
        if message["method"] == "subscriptions/listen":
            self.listened(message)
            return
        if (message.get("params") or {}).get("name") not in ("steps", "elicit"):
            said: list[bytes] = []
            handle(message, lambda each: said.append(encoded(each)))
            self.answer(200, said[-1])
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        handle(message, lambda each: self.chunk(b"data: " + encoded(each) + b"\n\n"))
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if b'"protocolVersion"' in body and not MODERN:
            self.send_header("Mcp-Session-Id", uuid.uuid4().hex)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def listened(self, message: Message) -> None:
        """A subscription, until whoever has it leaves."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        honoured = {"notifications": message["params"]["notifications"], "_meta": {SUBSCRIPTION: message["id"]}}
        said = {"method": "notifications/subscriptions/acknowledged", "params": honoured}
        self.chunk(b"data: " + encoded(said) + b"\n\n")
        while True:
            time.sleep(0.5)
            self.chunk(b": still here\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def do_GET(self) -> None:
        self.answer(405, b"")

    def do_DELETE(self) -> None:
        self.answer(200, b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 200

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ends early is nothing to report."""


def serve_stdio() -> None:
    lock = threading.Lock()

    def say(message: Message) -> None:
        with lock:
            sys.stdout.buffer.write(encoded(message) + b"\n")
            sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message.get("method") == ("initialize" if MODERN else "server/discover"):
            say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
            continue
        threading.Thread(target=handle, args=(message, say), daemon=True).start()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        Server(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
    else:
        serve_stdio()
