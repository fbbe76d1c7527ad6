"""Writes `requests.jsonl`: clients on official SDKs visit servers through the gateway, and what they send is kept.

    python -m tests.fuzz.record

It needs the peers of `tests/e2e` in Go and the environment of FastMCP.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e import foreign
from tests.e2e.test_foreign_peers import LEGACY, MODERN, PEERS, over_http
from tests.fuzz.corpus import FILE, PATH, PREFIX, SESSION, Recorded
from tests.matrix.recording import exchanges
from tests.matrix.test_matrix import record
from tests.support.processes import Programs, free_port

ANEW = {"host", "content-length", "connection", "accept-encoding", "user-agent", "transfer-encoding"}
NAMES = "far__"
START = re.compile(rb"([A-Z]+) \S+ HTTP/1\.1\r\n")


def said(folder: Path) -> Iterator[Recorded]:
    for file in sorted(folder.glob("gateway-*.client")):
        stream = file.read_bytes()
        methods = START.findall(stream)
        for method, (request, _) in zip(methods, exchanges(stream, b""), strict=False):
            headers = {name: value for name, value in request.headers.items() if name not in ANEW}
            if "mcp-session-id" in headers:
                headers["mcp-session-id"] = SESSION
            if "last-event-id" in headers:
                continue
            body = json.loads(request.body) if request.body else None
            text = json.dumps([sorted(headers.items()), body]).replace(NAMES, PREFIX).replace("far+", "")
            pairs, body = json.loads(text)
            yield Recorded(method.decode(), tuple(map(tuple, pairs)), body)


def kind(request: Recorded) -> tuple[Any, ...]:
    body = request.body if isinstance(request.body, dict) else {}
    params = body.get("params") or {}
    return (
        request.method,
        request.modern,
        body.get("method", "answer"),
        params.get("name", "").removeprefix(PREFIX),
        "inputResponses" in params,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        programs = Programs(folder)
        try:
            server = over_http(programs, "far", [*foreign.go("official-server"), "--legacy"])
            gateway = programs.gateway({"mcpServers": {"far": server}})
            port = free_port()
            record(programs, folder, {"gateway": (port, int(gateway.url.rpartition(":")[2]))})
            told = ("updated", "changes")
            visits = [
                foreign.Visit(f"http://127.0.0.1:{port}/mcp", revision, NAMES, "far+", told)
                for revision in (LEGACY, MODERN)
            ]
            clients = [
                foreign.go("official-client"),
                foreign.go("mcpgo-client"),
                [sys.executable, str(PEERS / "python_client.py")],
            ]
            for client in clients:
                foreign.seen_by(client, visits)
        finally:
            programs.end()
        found = {kind(request): request for request in said(folder)}
    assert PATH not in str(found)
    FILE.write_text("".join(f"{found[key].line()}\n" for key in sorted(found, key=str)), encoding="utf-8")


if __name__ == "__main__":
    main()
