"""Clients never hear where a server is: no host, port or URL is in anything that they get, whatever fails.

A gateway with its real transports stands in front of servers that fail in every way that we know, over stdio and HTTP.
Clients of both eras ask it everything, on every route; every byte that they receive is looked at.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.protocol.table import BackendSpec, Endpoint, HttpTarget, Limits, StdioTarget, Table, Target
from gateway.app import Gateway
from gateway.config.settings import Address, Settings
from gateway.observability.lag import Lag
from gateway.roles import Single
from gateway.wire.pool import Pool
from tests.support.certificates import Authority
from tests.support.harness import RecordingLog
from tests.support.patience import PATIENCE
from tests.support.processes import free_port

pytestmark = pytest.mark.e2e

TOKEN = "hush-hush-9f2c"
"""It must not turn up."""
LIMITS = Limits(link_connect=3.0, request_deadline=30.0, list_deadline=5.0)
Play = Callable[[trio.SocketStream, bytes, str], Awaitable[None]]
"""Answers one request on a connection; gets its bytes, and where the server is."""

# Servers over HTTP that fail ---------------------------------------------------------------------------------


def status(code: int, headers: str = "", body: str = "<p>proxy error at {at}, upstream db.internal:5432</p>") -> Play:
    async def play(stream: trio.SocketStream, request: bytes, at: str) -> None:
        text = body.format(at=at).encode()
        head = f"HTTP/1.1 {code} X\r\nContent-Type: text/html\r\nContent-Length: {len(text)}\r\n"
        await stream.send_all(f"{head}{headers.format(at=at)}\r\n".encode() + text)

    return play


def raw(text: str) -> Play:
    async def play(stream: trio.SocketStream, request: bytes, at: str) -> None:
        await stream.send_all(text.format(at=at).encode())
        await stream.aclose()

    return play


def answered(make: Callable[[Any, str], dict[str, Any]], kind: str = "application/json", code: int = 200) -> Play:
    async def play(stream: trio.SocketStream, request: bytes, at: str) -> None:
        message = json.loads(request.partition(b"\r\n\r\n")[2] or b"{}")
        text = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **make(message, at)}).encode()
        head = f"HTTP/1.1 {code} X\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n"
        await stream.send_all(head.encode() + text)

    return play


def refusing(message: Any, at: str) -> dict[str, Any]:
    return {"error": {"code": -32603, "message": f"can't reach {at} nor redis://cache.internal:6379"}}


def unheard_of(message: Any, at: str) -> dict[str, Any]:
    return {"result": {"protocolVersion": at, "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}}


async def dropping(stream: trio.SocketStream, request: bytes, at: str) -> None:
    """Takes part in the handshake of 2025-11-25; any other request breaks the connection."""
    message = json.loads(request.partition(b"\r\n\r\n")[2] or b"{}")
    if message.get("method") == "initialize":
        server = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "resources": {}, "prompts": {}}}
        server["serverInfo"] = {"name": "x", "version": "1"}
        await answered(lambda *_: {"result": server})(stream, request, at)
    elif message.get("method") == "notifications/initialized":
        await stream.send_all(b"HTTP/1.1 202 X\r\nContent-Length: 0\r\n\r\n")
    elif message.get("method") == "server/discover":
        await status(404)(stream, request, at)
    else:
        await stream.aclose()


HTTP: dict[str, Play] = {
    **{f"http{code}": status(code) for code in (200, 202, 400, 401, 403, 404, 405, 407, 418, 429, 500, 502, 503)},
    "moved": status(307, "Location: {at}/elsewhere\r\n"),
    "unauthorized": status(401, 'WWW-Authenticate: Bearer resource_metadata="{at}/.well-known/x"\r\n'),
    "garbage": raw("220 {at} ESMTP\r\n"),
    "closing": raw(""),
    "cut": raw("HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"),
    "endless": raw("HTTP/1.1 200 X\r\nX-At: {at}\r\n" + "X: y\r\n" * 20_000),
    "silentstream": raw("HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: {at}\n\n"),
    "nojson": raw("HTTP/1.1 200 X\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{at}"),
    "zipped": raw("HTTP/1.1 200 X\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\nx"),
    "refusing": answered(refusing),
    "refusing400": answered(refusing, code=400),
    "versions": answered(unheard_of),
    "dropping": dropping,
}

# Servers over stdio that fail --------------------------------------------------------------------------------

COMPLAINT = (
    "Error: connect ECONNREFUSED 127.0.0.1:{port}\\n"
    "    at TCPConnectWrap (http://127.0.0.1:{port}/x) DATABASE_URL=postgres://u:{token}@db.internal:5432/x\\n"
    "API_KEY={token} on port {port}, host localhost:{port}\\n"
)
REFUSE = """
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        error = {{"code": -32000, "message": "no database at 127.0.0.1:{port}"}}
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "error": error}}), flush=True)
"""
SERVE = """
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        result = {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}},
                  "serverInfo": {{"name": "x", "version": "1"}}}}
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
    elif "id" in message and message["method"] != "server/discover":
        sys.exit(7)
    elif "id" in message:
        error = {{"code": -32601, "message": "Method not found"}}
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "error": error}}), flush=True)
"""
STDIO = {
    "exiting": "sys.exit(3)",
    "closing1": "os.close(1); time.sleep(60)",
    "silent": "time.sleep(60)",
    "refusing1": REFUSE,
    "dying": SERVE,
    "nonsense": 'print(\'{{"at": "http://127.0.0.1:{port}"}}\', flush=True); sys.exit(1)',
}


def child(body: str, port: int) -> StdioTarget:
    complaint = COMPLAINT.format(port=port, token=TOKEN)
    script = f"import json, os, sys, time\nsys.stderr.write('{complaint}'); sys.stderr.flush()\n" + body.format(
        port=port
    )
    return StdioTarget(sys.executable, ("-S", "-c", script))


def unstartable(port: int) -> dict[str, Target]:
    return {
        "missing": StdioTarget("no-such-command-here"),
        "oneline": StdioTarget(f"npx-gone mcp-remote http://127.0.0.1:{port}/mcp --token {TOKEN}"),
        "folderless": StdioTarget(sys.executable, cwd="/no/such/place"),
        "forbidden": StdioTarget("/etc/passwd"),
        "nul": StdioTarget(sys.executable, ("a\0b",)),
    }


# The stage ---------------------------------------------------------------------------------------------------


async def listening(nursery: trio.Nursery, play: Play, tls: ssl.SSLContext | None = None) -> int:
    async def serve(stream: Any) -> None:
        try:
            async with stream:
                if tls is not None:
                    stream = trio.SSLStream(stream, tls, server_side=True)
                while request := await whole(stream):
                    await play(stream, request, f"http://127.0.0.1:{port}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    port = int(listeners[0].socket.getsockname()[1])
    return port


async def whole(stream: Any) -> bytes:
    data = b""
    while True:
        head, separator, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if separator and len(body) >= (int(length[1]) if length else 0):
            return data
        more = await stream.receive_some()
        if not more:
            return b""
        data += more


async def targets(nursery: trio.Nursery, folder: Path) -> tuple[dict[str, Target], set[int]]:
    """Every server that fails, by name, and the ports that must not turn up."""
    ports: set[int] = {free_port()}
    closed = next(iter(ports))
    found: dict[str, Target] = {
        "refused": HttpTarget(f"http://127.0.0.1:{closed}/mcp"),
        "v6": HttpTarget(f"http://[::1]:{closed}/mcp"),
        "nohost": HttpTarget(f"http://gone.invalid:{closed}/mcp"),
        **unstartable(closed),
        **{name: child(body, closed) for name, body in STDIO.items()},
    }
    for name, play in HTTP.items():
        port = await listening(nursery, play)
        found[name] = HttpTarget(f"http://127.0.0.1:{port}/mcp?key={TOKEN}", (("Authorization", f"Bearer {TOKEN}"),))
        ports.add(port)
    found["plain"] = HttpTarget(f"https://127.0.0.1:{port}/mcp")
    files = Authority(folder).issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    port = await listening(nursery, HTTP["http200"], context)
    ports.add(port)
    found["untrusted"] = HttpTarget(f"https://localhost:{port}/mcp")
    return found, ports


class Client:
    """Keeps every byte that comes."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.received: list[tuple[str, bytes]] = []
        self._pool = Pool()

    def close(self) -> None:
        self._pool.close()

    async def post(
        self, route: str, message: dict[str, Any], **headers: str
    ) -> tuple[dict[str, Any], dict[bytes, bytes]]:
        """The answer, and the headers that came with it."""
        url = f"http://127.0.0.1:{self.port}{route}"
        given = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")]
        given += [(name.replace("_", "-"), value) for name, value in headers.items()]
        response = await self._pool.request("POST", url, given, json.dumps({"jsonrpc": "2.0", **message}).encode())
        with response:
            body = b""
            with trio.move_on_after(40):
                while piece := await response.receive_some():
                    body += piece
                    if message.get("method") == "subscriptions/listen" and b"\n\n" in body:
                        break
        head = b"\n".join(b"%b: %b" % line for line in response.headers.items())
        self.received.append((f"{route} {message.get('method')}", b"%d\n" % response.status + head + b"\n" + body))
        found: dict[str, Any] = {}
        for line in body.splitlines() if b"data:" in body else [body]:
            text = line.removeprefix(b"data:").strip()
            if text.startswith(b"{") and "id" in (decoded := json.loads(text)) and "method" not in decoded:
                found = decoded
        return found, response.headers

    async def legacy(self, route: str, prefix: str) -> dict[str, Any]:
        """A session, as far as there is one; the answer to `initialize`."""
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        welcome, headers = await self.post(route, {"id": 1, "method": "initialize", "params": params})
        session = {"Mcp_Session_Id": headers.get(b"mcp-session-id", b"").decode()}
        if "result" not in welcome:
            return welcome
        await self.post(route, {"method": "notifications/initialized"}, **session)
        for number, (method, params) in enumerate(requests(prefix), 2):
            await self.post(route, {"id": number, "method": method, "params": params}, **session)
        return welcome

    async def modern(self, route: str, prefix: str) -> dict[str, Any]:
        """The answer to the first call."""
        first: dict[str, Any] = {}
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        listen = {"notifications": {"toolsListChanged": True}}
        for number, (method, params) in enumerate(
            [("server/discover", {}), *requests(prefix), ("subscriptions/listen", listen)], 1
        ):
            headers = {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": method}
            if name := params.get("name", params.get("uri")):
                headers["Mcp_Name"] = str(name)
            message = {"id": number, "method": method, "params": {**params, "_meta": meta}}
            answer, _ = await self.post(route, message, **headers)
            if method == "tools/call" and not first:
                first = answer
        return first


def requests(prefix: str) -> list[tuple[str, dict[str, Any]]]:
    call = ("tools/call", {"name": f"{prefix}tool", "arguments": {}})
    return [
        ("tools/list", {}),
        call,
        call,
        ("resources/list", {}),
        ("resources/read", {"uri": "file:///x"}),
        ("prompts/get", {"name": f"{prefix}prompt"}),
    ]


async def test_no_error_of_any_kind_names_an_address_or_a_credential(tmp_path: Path) -> None:
    log, serving = RecordingLog(), trio.Event()
    log.critical = log.error  # type: ignore[attr-defined]
    announced: list[Settings] = []

    def announce(settings: Settings) -> None:
        announced.append(settings)
        serving.set()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            found, ports = await targets(nursery, tmp_path)
            specs = {name: BackendSpec(name, target, timeout=30.0) for name, target in found.items()}
            endpoints = {name: Endpoint(name, "transparent", (name,)) for name in specs}
            endpoints[""] = Endpoint("", "aggregate", tuple(specs))
            nowhere = Address("127.0.0.1", 0)
            settings = Settings(Table(specs, endpoints), LIMITS, nowhere, nowhere)
            gateway = Gateway(settings, log, Lag(), Single(settings, announce))
            nursery.start_soon(gateway.run)
            await serving.wait()
            ports.add(announced[0].admin.port)
            client = Client(announced[0].listen.port)
            answers: dict[str, list[dict[str, Any]]] = {name: [] for name in specs}

            async def all_of(name: str) -> None:
                answers[name].append(await client.legacy(f"/mcp/{name}", ""))
                answers[name].append(await client.modern(f"/mcp/{name}", ""))

            async with trio.open_nursery() as asking:
                for name in specs:
                    asking.start_soon(all_of, name)
                asking.start_soon(client.legacy, "/mcp", "refused__")
                asking.start_soon(client.modern, "/mcp", "exiting__")
            client.close()
            nursery.cancel_scope.cancel()

    told = re.compile(
        rb"127\.0\.0\.1|localhost|\[::1\]|https?://|redis://|postgres|\.internal|gone\.invalid|proxy error|hush"
        + b"".join(rb"|(?<![0-9A-Za-z_-])%d(?![0-9A-Za-z_-])" % port for port in ports)
    )
    named = [(what, match[0], data[-400:]) for what, data in client.received if (match := told.search(data))]
    assert not named, named[:5]
    assert len(client.received) > 3 * len(specs)
    _each_error_names_its_server_and_a_reason(answers)
    _a_process_that_cannot_start_says_why(answers["exiting"])
    assert answers["http401"][0]["error"]["data"]["status"] == 401
    [refused] = [values for values in log.events("backend_failed") if values["backend"] == "refused"][:1]
    assert "http://127.0.0.1:" in refused["error"], "operators are not told where the server should be"


def _each_error_names_its_server_and_a_reason(answers: dict[str, list[dict[str, Any]]]) -> None:
    for name, given in answers.items():
        errors = [answer["error"] for answer in given if "error" in answer]
        for error in errors:
            own = error.get("data") or {}
            assert name in error["message"] or own.get("backend") == name, (name, error)
            assert own.get("reason"), (name, error)
        assert errors, (name, given)


def _a_process_that_cannot_start_says_why(given: list[dict[str, Any]]) -> None:
    for answer in given:
        data = answer["error"]["data"]
        assert "exited with status 3" in answer["error"]["message"]
        assert data["stderr"][0] == "Error: connect ECONNREFUSED [address]"
        assert len(data["stderr"]) == 3
