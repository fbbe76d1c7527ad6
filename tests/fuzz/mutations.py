"""Requests that are almost what was recorded: one seed, one sequence of them."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from tests.fuzz.corpus import PREFIX, SESSION, Recorded

STRANGE: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1.5,
    10**30,
    10**400,
    1e308,
    "",
    "\x00",
    "\x7f",
    "\u0001y",
    "x\ny",
    "\r\nX-Injected: yes",
    "\ud800",
    "é\u202e",
    "a" * 2000,
    "a" * 70_000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    "../../etc/passwd",
    "%00",
    "{session}",
    "notifications/cancelled",
    "tools/call",
    "initialize",
    "2026-07-28",
    "2025-11-25",
    "1999-01-01",
    "honest__echo",
]
METHODS = [
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "server/discover",
    "subscriptions/listen",
    "tasks/list",
    "tasks/get",
    "tasks/result",
    "tasks/cancel",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/roots/list_changed",
    "sampling/createMessage",
    "roots/list",
    "no/such",
    "x\u0001y",
    "x\ny",
    "\u007f",
    "x y",
    "é/list",
    "",
]
HEADERS = [
    "mcp-protocol-version",
    "mcp-session-id",
    "mcp-method",
    "mcp-name",
    "last-event-id",
    "accept",
    "content-type",
    "origin",
    "host",
    "authorization",
    "stagedoor-affinity",
    "mcp-param-x",
    "transfer-encoding",
    "content-length",
    "expect",
    "upgrade",
    "connection",
    "content-encoding",
    "te",
    "http2-settings",
]
VALUES = [
    "",
    "x",
    "*/*",
    "text/html",
    "chunked",
    "gzip",
    "0",
    "-1",
    "99999999999",
    "100-continue",
    "h2c",
    "websocket",
    "close",
    "p1:1-1",
    "p0:0-0",
    "=?base64?aGk=?=",
    "=?base64?!!!?=",
    "\x01",
    "a, b",
    "é",
    "http://evil.example",
    "y" * 9000,
    "2026-07-28",
    "2025-11-25",
    "application/json",
    "text/event-stream",
    "{session}",
]
MEMBERS = ("id", "_meta", "params", "result", "error", "cursor", "task", "x")


class Mutator:
    """Makes bytes to send, from what was recorded."""

    def __init__(self, rng: random.Random, corpus: list[Recorded]) -> None:
        self.rng = rng
        self.corpus = corpus

    def request(self, path: str, prefix: str, session: str, token: str, port: int) -> bytes:
        """A request, changed in none to four places."""
        rng = self.rng
        recorded = rng.choice(self.corpus)
        method, headers, body = recorded.method, list(recorded.headers), copy.deepcopy(recorded.body)
        headers += [("Host", f"127.0.0.1:{port}"), ("authorization", f"Bearer {token}")]
        raw: bytes | None = None
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            match rng.randrange(8):
                case 0:
                    headers = self.change_headers(headers)
                case 1:
                    raw = self.spoil(raw if raw is not None else self.dump(body))
                case 2:
                    method = rng.choice(["GET", "POST", "DELETE", "PUT", "OPTIONS", "HEAD", "PRI", "X" * 300, "p\x00"])
                case 3:
                    body = [body] * rng.choice((1, 2, 60)) if rng.random() < 0.3 else self.change(body)
                case _:
                    body = self.change(body)
        raw = raw if raw is not None else (b"" if body is None else self.dump(body))
        filled = [(name, value.replace(SESSION, session).replace(PREFIX, prefix)) for name, value in headers]
        raw = raw.replace(SESSION.encode(), session.encode()).replace(PREFIX.encode(), prefix.encode())
        if not any(name.lower() in ("content-length", "transfer-encoding") for name, _ in filled):
            filled.append(("Content-Length", str(len(raw) + (rng.choice((-1, 1, 50)) if rng.random() < 0.03 else 0))))
        head = "".join(f"{name}: {value}\r\n" for name, value in filled)
        return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogatepass") + raw

    def strange(self) -> Any:
        """A value of its own: it may be changed in turn."""
        return copy.deepcopy(self.rng.choice(STRANGE))

    def dump(self, body: Any) -> bytes:
        return json.dumps(body, ensure_ascii=self.rng.random() < 0.5).encode("utf-8", "surrogatepass")

    def change(self, body: Any) -> Any:
        """A value somewhere in it is another one, is gone, or is new."""
        rng = self.rng
        places = list(self.places(body))
        if not places or rng.random() < 0.03:
            return self.strange()
        holder, key = rng.choice(places)
        if isinstance(body, dict) and "method" in body and rng.random() < 0.2:
            holder, key = body, "method"
        if isinstance(holder, dict) and key == "method" and rng.random() < 0.8:
            holder[key] = rng.choice(METHODS)
        elif rng.random() < 0.2:
            del holder[key]
        elif isinstance(holder, dict) and rng.random() < 0.2:
            holder[rng.choice(["id", "_meta", "params", "result", "error", "cursor", "task", "x"])] = rng.choice(
                STRANGE
            )
        else:
            holder[key] = self.strange()
        return body

    def places(self, value: Any) -> Any:
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            yield value, key
            yield from self.places(value[key])

    def change_headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        rng = self.rng
        changed = [pair for pair in headers if rng.random() > 0.1]
        for _ in range(rng.choice((1, 1, 3))):
            changed.insert(rng.randrange(len(changed) + 1), (rng.choice(HEADERS), rng.choice(VALUES)))
        if rng.random() < 0.05:
            changed += [(f"x-{number}", "y") for number in range(rng.choice((100, 2000)))]
        return changed

    def spoil(self, raw: bytes) -> bytes:
        rng = self.rng
        match rng.randrange(7):
            case 0:
                at = rng.randrange(len(raw) + 1)
                return raw[:at] + rng.randbytes(rng.choice((1, 3, 40))) + raw[at:]
            case 1:
                return raw[: rng.randrange(len(raw) + 1)]
            case 2:
                return raw.replace(b'"', rng.choice((b"'", b'""', b'\\"', b"")), rng.choice((1, 3)))
            case 3:
                return b"[" * rng.choice((200, 100_000)) + raw
            case 4:
                return raw.replace(b"{", b'{"a":' * rng.choice((2, 20_000)) + b"{", 1)
            case 5:
                return raw + raw
        return raw[:-1] + b',"id":1,"id":2,"method":"ping"}' if raw.endswith(b"}") else raw + b"\x00"
