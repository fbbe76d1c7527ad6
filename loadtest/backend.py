"""A fast MCP server with sessions, so that what is measured is what stands in front of it.

Streamable HTTP: `python -m loadtest.backend --port PORT`; stdio: `python -m loadtest.backend --stdio`. Its tools:
`echo` answers at once with about 300 bytes, `stream` logs first and so answers as SSE, `slow` logs, waits `seconds`,
and answers as SSE, `flood` logs two megabytes first, `events` reports progress a hundred times, `large` answers with a
megabyte; `ask` elicits a number and answers with it (over HTTP only).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from loadtest.wire import Handler, Request, ServerConnection, serve

TEXT = "The quick brown fox jumps over the lazy dog. " * 5
NO_SUCH_METHOD = -32601


class Message(msgspec.Struct):
    """An incoming JSON-RPC message."""

    id: int | str | None = None
    method: str = ""
    params: dict[str, Any] = {}
    result: dict[str, Any] = {}


decode = msgspec.json.Decoder(Message).decode
encode = msgspec.json.Encoder().encode

TOOLS = [
    {"name": name, "description": description, "inputSchema": {"type": "object"}}
    for name, description in (
        ("echo", "Answers at once"),
        ("stream", "Logs, then answers"),
        ("slow", "Logs, waits, then answers"),
        ("flood", "Logs much, then answers"),
        ("events", "Reports progress, then answers"),
        ("large", "Answers with much"),
        ("ask", "Asks for a number, then answers"),
    )
]
FLOOD_LINES = 2000
EVENTS = 100
LARGE = "The quick brown fox jumps over the lazy dog. " * (2**20 // 45)
QUESTION = {
    "message": "Which number?",
    "requestedSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}
ANSWERED_WITHIN = 30.0  # seconds


def log_line(text: str) -> bytes:
    return encode({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": text}})


def progress(params: dict[str, Any], done: int) -> bytes:
    token = (params.get("_meta") or {}).get("progressToken")
    told = {"progressToken": token, "progress": done, "message": "still at it"}
    return encode({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})


WORKING, FLOODING = log_line("working"), log_line("x" * 1000)


def initialized(params: dict[str, Any]) -> dict[str, Any]:
    return {
        "protocolVersion": params.get("protocolVersion", "2025-11-25"),
        "capabilities": {"tools": {}, "logging": {}},
        "serverInfo": {"name": "loadtest-backend", "version": "1"},
    }


def called(params: dict[str, Any]) -> dict[str, Any]:
    number = (params.get("arguments") or {}).get("n", 0)
    text = LARGE if params.get("name") == "large" else TEXT
    return {"content": [{"type": "text", "text": f"{number}: {text}"}], "isError": False}


def given(answer: dict[str, Any]) -> dict[str, Any]:
    """What was filled into the question."""
    content: dict[str, Any] = answer.get("content") or {}
    return content


RESULTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "initialize": initialized,
    "tools/call": called,
    "tools/list": lambda _: {"tools": TOOLS},
    "ping": lambda _: {},
    "logging/setLevel": lambda _: {},
}


def respond(message: Message) -> bytes:
    make = RESULTS.get(message.method)
    if make is None:
        error = {"code": NO_SUCH_METHOD, "message": f"Method not found: {message.method}"}
        return encode({"jsonrpc": "2.0", "id": message.id, "error": error})
    return encode({"jsonrpc": "2.0", "id": message.id, "result": make(message.params)})


def before_answer(message: Message) -> tuple[list[bytes], float]:
    """What a call logs before its answer, and how many seconds it then waits."""
    if message.method != "tools/call":
        return [], 0.0
    match message.params.get("name"):
        case "stream":
            return [WORKING], 0.0
        case "slow":
            return [WORKING], float((message.params.get("arguments") or {}).get("seconds", 0))
        case "flood":
            return [FLOODING] * FLOOD_LINES, 0.0
        case "events":
            return [progress(message.params, n) for n in range(EVENTS)], 0.0
        case _:
            return [], 0.0


_sessions = itertools.count(1)
JSON = b"content-type: application/json\r\n"


async def handle(connection: ServerConnection) -> None:
    """Serves one HTTP connection."""
    while (request := await connection.next_request()) is not None:
        if request.method == b"POST":
            await post(connection, request)
        elif request.method == b"GET":
            await connection.start_events()
            await connection.wait_closed()
            return
        else:
            await connection.answer(b"200 OK")


class ServerRequested:
    """A question on its way, by whose id its answer is known."""

    waiting: dict[int | str | None, ServerRequested] = {}
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.id = f"ask-{next(self._numbers)}"
        self.answer: dict[str, Any] = {}
        self.answered = trio.Event()
        self.waiting[self.id] = self


def take_answer(message: Message) -> None:
    asked = ServerRequested.waiting.pop(message.id, None)
    if asked is not None:
        asked.answer = message.result
        asked.answered.set()


async def ask(connection: ServerConnection, message: Message) -> None:
    """Asks on the stream of the call, and answers the call there."""
    asked = ServerRequested()
    await connection.start_events()
    question = {"jsonrpc": "2.0", "id": asked.id, "method": "elicitation/create", "params": QUESTION}
    await connection.piece(b"data: %b\n\n" % encode(question))
    with trio.move_on_after(ANSWERED_WITHIN):
        await asked.answered.wait()
    message.params = {"arguments": given(asked.answer)}
    await connection.piece(b"data: %b\n\n" % respond(message))
    await connection.piece(b"")


async def post(connection: ServerConnection, request: Request) -> None:
    message = decode(request.body)
    if message.id is None or not message.method:
        take_answer(message)
        await connection.answer(b"202 Accepted")
        return
    if message.method == "tools/call" and message.params.get("name") == "ask":
        await ask(connection, message)
        return
    logged, wait = before_answer(message)
    if logged:
        await connection.start_events()
        for line in logged:
            await connection.piece(b"data: %b\n\n" % line)
        if wait:
            await trio.sleep(wait)
        await connection.piece(b"data: %b\n\n" % respond(message))
        await connection.piece(b"")
        return
    extra = JSON
    if message.method == "initialize":
        extra += b"mcp-session-id: s%x\r\n" % next(_sessions)
    await connection.answer(b"200 OK", respond(message), extra)


def serve_stdio() -> None:
    """One message a line, answered in order."""
    output = sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = decode(line)
        if message.id is None:
            continue
        logged, wait = before_answer(message)
        if logged:
            output.writelines(line + b"\n" for line in logged)
            output.flush()
            time.sleep(wait)
        output.write(respond(message) + b"\n")
        output.flush()


def main(handler: Handler = handle) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--cpu", type=int, help="run on this CPU, whatever the parent does")
    options = parser.parse_args()
    if options.cpu is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.cpu})
    gc.set_threshold(200_000, 50, 1000)
    if options.stdio:
        serve_stdio()
    else:
        trio.run(serve, options.port, handler)


if __name__ == "__main__":
    main()
