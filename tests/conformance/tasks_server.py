"""A server without sessions whose tools run as tasks of the extension `io.modelcontextprotocol/tasks` (SEP-2663): what
they are called, and what becomes of each, is as the suite's scenarios want it. No SDK has such a server.

It checks no headers: that is for whoever stands in front. A program (`tasks_server.py PORT`), not a module.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EXTENSION = "io.modelcontextprotocol/tasks"
NEEDED = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
HINTS = {"ttlMs": 0, "cacheScope": "private"}
STATUSES = {-32601: 404, -32021: 400}
SYNC_SECONDS = 3.0
"""For which a call without tasks works at most."""

Message = dict[str, Any]
Outcome = Callable[[Message], Message]
"""What is inlined into a task that is over, from the answers that it got."""


class RpcError(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Message | None = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def text(words: str, **members: Any) -> Message:
    return {"content": [{"type": "text", "text": words}], **members}


def elicit(message: str, name: str) -> Message:
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


class Task:
    """One task: it asks what it has to, works for some seconds, and has its outcome."""

    def __init__(self, seconds: float, outcome: Outcome, questions: Message | None = None) -> None:
        self.id = uuid.uuid4().hex
        self.questions = dict(questions or {})
        self.answers: Message = {}
        self.cancelled = False
        self._created = now()
        self._over = time.monotonic() + seconds
        self._outcome = outcome
        TASKS[self.id] = self

    def detailed(self) -> Message:
        """As `tasks/get` gives it."""
        if self.cancelled:
            return self._with("cancelled")
        if self.questions:
            return self._with("input_required", inputRequests=self.questions)
        if time.monotonic() < self._over:
            return self._with("working")
        outcome = self._outcome(self.answers)
        return self._with("failed" if "error" in outcome else "completed", **outcome)

    def created(self) -> Message:
        """As a call gives it."""
        return {"resultType": "task", **self._with("working")}

    def _with(self, status: str, **members: Any) -> Message:
        times = {"createdAt": self._created, "lastUpdatedAt": now(), "ttlMs": 60_000, "pollIntervalMs": 200}
        return {"taskId": self.id, "status": status, **times, **members}


TASKS: dict[str, Task] = {}


def slow_compute(params: Message, declared: bool) -> Message:
    seconds = float(params.get("arguments", {}).get("seconds", 0))
    if declared:
        return Task(seconds, lambda _: {"result": text("computed")}).created()
    time.sleep(min(seconds, SYNC_SECONDS))
    return {"resultType": "complete", **text("computed")}


def test_tool_with_task(params: Message, declared: bool) -> Message:
    """Asks first, and goes on as a task with the answer."""
    answers = params.get("inputResponses")
    if not answers:
        asked = {"user_name": elicit("What is your name?", "name")}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": "asked"}
    return Task(0.3, lambda _: {"result": text(f"Hello {json.dumps(answers)}")}).created()


def as_task(seconds: float, outcome: Message, **questions: Message) -> Callable[[Message, bool], Message]:
    """A tool that runs as a task only."""

    def call(params: Message, declared: bool) -> Message:
        if not declared:
            raise RpcError(-32021, "this tool runs as a task", NEEDED)
        return Task(seconds, lambda _: outcome, questions).created()

    return call


TOOLS: dict[str, Callable[[Message, bool], Message]] = {
    "greet": lambda params, _: {"resultType": "complete", **text(f"Hello, {params['arguments'].get('name')}!")},
    "slow_compute": slow_compute,
    "failing_job": as_task(1.0, {"result": text("it failed", isError=True)}),
    "protocol_error_job": as_task(0.5, {"error": {"code": -32603, "message": "it broke"}}),
    "confirm_delete": as_task(0.0, {"result": text("deleted")}, confirm=elicit("Sure?", "confirm")),
    "multi_input": as_task(0.0, {"result": text("both")}, first=elicit("First?", "a"), second=elicit("Second?", "b")),
    "test_tool_with_task": test_tool_with_task,
}


def serve(method: str, params: Message) -> Message:
    """The result of a request."""
    declared = EXTENSION in params.get("_meta", {}).get(CAPABILITIES, {}).get("extensions", {})
    if method == "server/discover":
        offered = {"tools": {}, "extensions": {EXTENSION: {}}}
        return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": offered, **HINTS}
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        return {"resultType": "complete", "tools": tools, **HINTS}
    if method == "tools/call" and params["name"] in TOOLS:
        return TOOLS[params["name"]](params, declared)
    if method in ("tasks/get", "tasks/update", "tasks/cancel"):
        if not declared:
            raise RpcError(-32021, "tasks were not declared", NEEDED)
        return {"resultType": "complete", **about_task(method, params)}
    raise RpcError(-32602 if method == "tools/call" else -32601, "there is no such thing")


def about_task(method: str, params: Message) -> Message:
    task = TASKS.get(params["taskId"])
    if task is None:
        raise RpcError(-32602, "there is no such task")
    if method == "tasks/get":
        return task.detailed()
    if method == "tasks/cancel":
        task.cancelled = task.detailed()["status"] in ("working", "input_required", "cancelled")
        return {}
    for key, answer in params["inputResponses"].items():
        if task.questions.pop(key, None) is not None:
            task.answers[key] = answer
    return {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the library's name
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = 200
        try:
            outcome: Message = {"result": serve(request["method"], request.get("params", {}))}
        except RpcError as refused:
            outcome, status = {"error": refused.error}, STATUSES.get(refused.error["code"], 200)
        body = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), **outcome}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
