"""A server that keeps no rule: `hostile_server.py SEED legacy|modern [PORT]`, over HTTP on PORT, else stdio.

It begins as a server should, most of the time, so that there is somebody to attack; then each answer is one of the
attacks below, chosen by the seed. If bytes reach it that hold a secret, it says so on its stderr: nobody sends it any.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SECRET = b"s3cr3t-"
MODERN = sys.argv[2] == "modern"
RESET = struct.pack("ii", 1, 0)
CAPABILITIES: dict[str, Any] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "logging": {},
    "completions": {},
}
STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**400,
    1e308,
    "",
    "\x00",
    "\ud800",
    "\r\nX-Injected: yes",
    "a" * 5000,
    [],
    {},
    [[]],
    {"a": {}},
    "../../etc/passwd",
    "honest__echo",
    "io.modelcontextprotocol/protocolVersion",
]


def dumped(message: Any) -> bytes:
    return json.dumps(message).encode()


class Hostile:
    """One attacker's moods; `rng` is its own."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)

    def strange(self) -> Any:
        return self.rng.choice(STRANGE)

    def proper(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """What a server should say."""
        kept = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if MODERN else {}
        tools = ["echo", "elicit", "steps", "sample", "roots", "fail", "touch", "change"]
        match method:
            case "initialize":
                info = {"name": "hostile", "version": "1"}
                return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info}
            case "server/discover":
                return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, **kept}
            case "tools/list":
                return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools], **kept}
            case "resources/list":
                return {"resources": [{"uri": "memo:///one", "name": "one"}], **kept}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": "memo:///by-id/{id}", "name": "by id"}], **kept}
            case "prompts/list":
                return {"prompts": [{"name": "greeting"}], **kept}
            case "tools/call":
                return {"content": [{"type": "text", "text": "fine"}], **kept}
        return {**kept}

    def spoilt(self, method: str, params: dict[str, Any]) -> Any:
        """A result that is wrong somewhere."""
        rng = self.rng
        if method.endswith("/list") and rng.random() < 0.7:
            key = {"resources/templates/list": "resourceTemplates"}.get(method, method.partition("/")[0])
            name = rng.choice(["name", "uri", "uriTemplate"])
            items: list[Any] = [
                [{name: self.strange(), "inputSchema": self.strange()} for _ in range(rng.choice((1, 50)))],
                [{"name": f"t{n}", "uri": f"u:{n}", "inputSchema": {}} for n in range(3000)],
                [{"name": "x" * 100_000, "uri": "u:" + "x" * 100_000}],
                [{"name": "same", "uri": "u:same", "inputSchema": {}}] * 30,
                [{"name": "p", "inputSchema": {"properties": {"a": {"x-mcp-header": self.strange()}}}}],
                self.strange(),
            ]
            return {**self.proper(method, params), key: rng.choice(items), "nextCursor": rng.choice(["", "again", 7])}
        result = self.proper(method, params)
        for _ in range(rng.randint(1, 3)):
            result[rng.choice([*result, "_meta", "isError", "content", "contents", "messages", "tools"])] = (
                self.strange()
            )
        if rng.random() < 0.3:
            count = rng.choice([1, 65])
            asks = {str(n): rng.choice([self.strange(), {"method": "elicitation/create"}]) for n in range(count)}
            result |= {"resultType": "input_required", "inputRequests": asks}
            result["requestState"] = rng.choice(["x", "x" * 600_000, self.strange()])
        return result

    def messages(self, id: Any, method: str, params: dict[str, Any]) -> list[bytes]:
        """What is said instead of one proper answer: whole messages, or what should be some."""
        rng = self.rng
        proper = {"jsonrpc": "2.0", "id": id, "result": self.proper(method, params)}
        begins = method in ("initialize", "server/discover") or method.endswith("/list")
        if rng.random() < (0.8 if begins else 0.15):
            return [dumped(proper)]
        token = (params.get("_meta") or {}).get("progressToken") if isinstance(params.get("_meta"), dict) else None
        noise: list[Callable[[], list[bytes]]] = [
            lambda: [dumped({**proper, "result": self.spoilt(method, params)})],
            lambda: [dumped({**proper, "result": self.spoilt(method, params)})],
            lambda: [dumped({**proper, "id": other}) for other in (f"{id}0", 1, None, [id], {"id": id})],
            lambda: [dumped(proper)] * 3,
            lambda: [dumped([proper, proper])],
            lambda: [dumped({"jsonrpc": "2.0", "id": id, "error": rng.choice([*STRANGE, {"code": "x"}, {}])})],
            lambda: [dumped({**proper, "error": {"code": 1, "message": "both"}})],
            lambda: [rng.randbytes(rng.choice([1, 100, 70_000])).replace(b"\n", b" ")],
            lambda: [b'{"jsonrpc":"2.0","id":' + b"[" * 100_000],
            lambda: [b'{"jsonrpc":"2.0","id":%b,"result":%b1%b}' % (dumped(id), b'{"a":' * 50_000, b"}" * 50_000)],
            lambda: [
                b'{"jsonrpc":"2.0","id":%b,"result":{"content":[{"type":"text","text":"\xff\xfe\xc3("}]}}' % dumped(id)
            ],
            lambda: [b'{"jsonrpc":"2.0","id":%b,"result":{"content":[{"type":"text","text":"\\ud800"}]}}' % dumped(id)],
            lambda: [b'{"jsonrpc":"2.0","id":%b,"result":{"big":"%b"}}' % (dumped(id), b"x" * (5 << 20))],
            lambda: [dumped(proper)[: rng.randint(1, 40)]],
            lambda: [self.told(token) for _ in range(rng.choice([1, 200]))] + [dumped(proper)],
            lambda: [self.asked() for _ in range(rng.choice([1, 80]))] + [dumped(proper)],
            list,
        ]
        return rng.choice(noise)()

    def told(self, token: Any) -> bytes:
        """A notification, of a kind that there is or not."""
        method = self.rng.choice(
            [
                "notifications/progress",
                "notifications/message",
                "notifications/cancelled",
                "notifications/initialized",
                "notifications/tools/list_changed",
                "notifications/resources/updated",
                "notifications/no/such",
                "\r\n\x00",
                "notifications/subscriptions/acknowledged",
                "notifications/elicitation/complete",
            ]
        )
        params: Any = {
            "progressToken": self.rng.choice([token, self.strange()]),
            "progress": self.strange(),
            "uri": self.strange(),
            "requestId": self.strange(),
            "level": "info",
            "data": self.strange(),
            "_meta": self.strange(),
        }
        return dumped({"jsonrpc": "2.0", "method": method, "params": self.rng.choice([params, params, self.strange()])})

    def asked(self) -> bytes:
        """A request to the client."""
        method = self.rng.choice(
            ["ping", "elicitation/create", "sampling/createMessage", "roots/list", "tools/call", "x"]
        )
        params = {"message": self.strange(), "requestedSchema": self.strange(), "mode": self.strange(), "messages": []}
        return dumped({"jsonrpc": "2.0", "id": self.strange(), "method": method, "params": params})


# --- HTTP


def look(data: bytes) -> bytes:
    if SECRET in data:
        print("LEAK: a secret reached a hostile server", file=sys.stderr, flush=True)
        with open(os.environ["FUZZ_LEAKS"], "a") as file:
            file.write(f"a hostile server read {data[:2000]!r}\n")
    return data


class Connection:
    """One connection, until it is closed, by either side."""

    def __init__(self, sock: socket.socket, hostile: Hostile) -> None:
        self.sock = sock
        self.hostile = hostile
        self.rng = hostile.rng

    def run(self) -> None:
        rest = b""
        with contextlib.suppress(OSError, ValueError), self.sock:
            self.sock.settimeout(30)
            while True:
                while b"\r\n\r\n" not in rest:
                    data = look(self.sock.recv(65536))
                    if not data:
                        return
                    rest += data
                head, _, rest = rest.partition(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n")[1:]:
                    name, _, value = line.partition(b":")
                    length = int(value) if name.strip().lower() == b"content-length" else length
                while len(rest) < length:
                    data = look(self.sock.recv(65536))
                    if not data:
                        return
                    rest += data
                body, rest = rest[:length], rest[length:]
                if not self.answer(head, body):
                    return

    def answer(self, head: bytes, body: bytes) -> bool:
        """Whether the connection goes on."""
        verb = head.partition(b" ")[0]
        if verb == b"GET":
            return self.stream([self.hostile.rng.choice([self.hostile.told, lambda _: self.hostile.asked()])(None)] * 3)
        if verb == b"DELETE":
            return self.whole(self.rng.choice([200, 204, 405, 500]), b"")
        message = json.loads(body)
        if "id" not in message or "method" not in message:
            return self.whole(202, b"")
        method, params = message["method"], message.get("params") or {}
        if method == ("initialize" if MODERN else "server/discover"):
            error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}
            return self.whole(404, dumped(error))
        said = self.hostile.messages(message["id"], method, params)
        begins = method in ("initialize", "server/discover") or method.endswith("/list")
        if method == "subscriptions/listen" and self.rng.random() < 0.7:
            meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
            wanted = {"notifications": params.get("notifications"), "_meta": meta}
            acknowledged = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": wanted}
            return self.stream([dumped(acknowledged), *(self.hostile.told(None) for _ in range(5))])
        if self.rng.random() < (0.85 if begins else 0.5):
            return self.whole(200, said[0]) if len(said) == 1 and self.rng.random() < 0.5 else self.stream(said)
        attacks = [
            self.reset,
            self.nothing,
            self.slow,
            self.cut,
            self.headers,
            self.twice,
            self.endless,
            self.redirect,
            self.events,
            self.status,
        ]
        return self.rng.choice(attacks)(said)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def whole(self, status: int, body: bytes, more: bytes = b"") -> bool:
        session = b"" if MODERN else b"Mcp-Session-Id: hostile-%d\r\n" % self.rng.randrange(10**9)
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%b%bContent-Length: %d\r\n\r\n"
        self.send(head % (status, session if b'"protocolVersion"' in body else b"", more, len(body)) + body)
        return True

    def stream(self, said: list[bytes]) -> bool:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for message in said:
            data = b"data: " + message + b"\n\n"
            if self.rng.random() < 0.3:
                data = b"id: %d\n" % self.rng.randrange(1000) + data
            self.send(b"%x\r\n%b\r\n" % (len(data), data))
        self.send(b"0\r\n\r\n")
        return True

    def reset(self, _: list[bytes]) -> bool:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        return False

    def nothing(self, _: list[bytes]) -> bool:
        time.sleep(self.rng.random())
        return False

    def slow(self, said: list[bytes]) -> bool:
        body = said[0][:200] if said else b""
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1))
        for byte in body[:40]:
            self.send(bytes([byte]))
            time.sleep(0.05)
        return False

    def cut(self, said: list[bytes]) -> bool:
        body = b"".join(said)[:500]
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(body) + 99))
        self.send(body)
        return False

    def headers(self, said: list[bytes]) -> bool:
        more = self.rng.choice(
            [
                b"X: y\r\n" * 5000,
                b"X: " + b"y" * 200_000 + b"\r\n",
                b"X\x00: y\r\n",
                b": y\r\n",
                b"X: a\rb\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"Content-Length: 1\r\n",
                b"Content-Encoding: gzip\r\n",
                b"Mcp-Session-Id: a b\x01\xff\r\n",
                b"Mcp-Session-Id: " + b"s" * 100_000 + b"\r\n",
                b" folded: x\r\n",
            ]
        )
        self.whole(200, said[0] if said else b"{}", more)
        return False

    def twice(self, said: list[bytes]) -> bool:
        """An answer, and one more that nobody asked for."""
        self.whole(200, said[0] if said else b"{}")
        self.whole(200, dumped({"jsonrpc": "2.0", "id": 1, "result": {"content": []}}))
        return True

    def endless(self, _: list[bytes]) -> bool:
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _number in range(300):
            self.send(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
        return False

    def redirect(self, _: list[bytes]) -> bool:
        return self.whole(self.rng.choice([301, 302, 307, 308]), b"", b"Location: http://127.0.0.1:1/\r\n")

    def events(self, said: list[bytes]) -> bool:
        """What only looks like a stream of events."""
        said = said or [b"{}"]
        bodies = [
            b":" * 100_000,
            b"data\ndata\ndata\n\n",
            b"data: " + said[0],
            b"\xff\xfe\xfd\n\n",
            b"id: \x00\ndata: {}\n\n",
            b"retry: -1\nretry: 99999999999999999999\ndata: {}\n\n",
            b"event: error\ndata: " + said[0] + b"\n\n",
            b"data: {\rdata: }\r\r",
            b": c\n" * 20_000,
            b"id: " + b"9" * 50_000 + b"\ndata: {}\n\n",
            b"\n" * 10_000,
        ]
        body = self.rng.choice(bodies)
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body)
        return False

    def status(self, said: list[bytes]) -> bool:
        start = self.rng.choice(
            [
                b"HTTP/1.1 999 X",
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x",
                b"HTTP/1.1 100 Continue",
                b"HTTP/9.9 200",
                b"hello",
                b"HTTP/1.1 204 X",
                b"HTTP/1.1 304 X",
                b"HTTP/1.1 401 X",
                b"HTTP/1.1 404 X",
                b"HTTP/1.1 503 X",
                b"HTTP/1.1 200 " + b"x" * 70_000,
                b"HTTP/1.1 -1 X",
                b"\x16\x03\x01",
            ]
        )
        self.send(start + b"\r\nContent-Length: 2\r\n\r\n{}")
        return False


def serve_http(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=200) as listener:
        number = 0
        while True:
            sock, _ = listener.accept()
            number += 1
            connection = Connection(sock, Hostile(f"{sys.argv[1]}/{number}"))
            threading.Thread(target=connection.run, daemon=True).start()


# --- stdio


def serve_stdio() -> None:
    with open(f"{os.environ['FUZZ_LEAKS']}.lives", "ab") as lives:  # each life is another one
        lives.write(b".")
        hostile = Hostile(f"{sys.argv[1]}/stdio/{lives.tell()}")
    rng, out = hostile.rng, sys.stdout.buffer
    for line in sys.stdin.buffer:
        message = json.loads(look(line))
        if "id" not in message or "method" not in message:
            continue
        method, params = message["method"], message.get("params") or {}
        if method == ("initialize" if MODERN else "server/discover"):
            said = [dumped({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}})]
        else:
            said = hostile.messages(message["id"], method, params)
        begins = method in ("initialize", "server/discover") or method.endswith("/list")
        for each in said:
            out.write(each + b"\n")
        if not begins:
            match rng.randrange(14):
                case 0:
                    os._exit(rng.choice([0, 1, 9]))
                case 1:
                    out.write(b"x" * (5 << 20))
                case 2:
                    sys.stderr.write("noise " * 50_000 + "\n")
                case 3:
                    out.write(b"\n\r\n\x00\xff\xfe not json\n" * 100)
                case 4:
                    time.sleep(rng.random() * 2)
        out.flush()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        serve_http(int(sys.argv[3]))
    else:
        serve_stdio()
