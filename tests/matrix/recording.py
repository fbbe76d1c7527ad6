"""What was said on both sides of the gateway, from the files of `tap.py` and `tee.py`: connections with messages.

A connection is what one revision is negotiated for: a process on stdio, a session over HTTP; in the era without
sessions a single HTTP request with its answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.schemas import MODERN, Sender

Message = dict[str, Any]

GATEWAY = "gateway"
"""The name of the tap between clients and the gateway; the others bear their servers' names."""
SESSION, REVISION = "mcp-session-id", "mcp-protocol-version"


@dataclass
class Connection:
    """Whom the gateway talks with, and what each end said. `header`: the revision that HTTP requests named."""

    name: str
    header: str | None = None
    said: dict[Sender, list[Message]] = field(default_factory=lambda: {"client": [], "server": []})

    @property
    def revision(self) -> str:
        """What was negotiated; else (nothing is, without sessions) what the requests say."""
        for message in self.said["server"]:
            result = message.get("result")
            if isinstance(result, dict) and "protocolVersion" in result:
                negotiated: str = result["protocolVersion"]
                return negotiated
        return self.header or MODERN


def connections(folder: Path) -> list[Connection]:
    """All that was recorded so far. A message that is not yet whole is left out."""
    found: dict[tuple[str, str], Connection] = {}
    for record in sorted(folder.glob("*.client")):
        name, _, number = record.stem.rpartition("-")
        client, server = record.read_bytes(), answered(record.with_suffix(".server"))
        if client.startswith((b"{", b"[")):
            found[name, f"process {number}"] = Connection(name, said={"client": lines(client), "server": lines(server)})
            continue
        for count, (request, response) in enumerate(exchanges(client, server)):
            session = response.headers.get(SESSION) or request.headers.get(SESSION) or f"{number}, exchange {count}"
            connection = found.setdefault((name, session), Connection(name))
            connection.header = request.headers.get(REVISION, connection.header)
            connection.said["client"] += messages(request)
            connection.said["server"] += messages(response)
    return list(found.values())


def answered(record: Path) -> bytes:
    return record.read_bytes() if record.exists() else b""  # it just began


# --- stdio


def lines(stream: bytes) -> list[Message]:
    whole, _, _ = stream.rpartition(b"\n")
    return [message for line in whole.splitlines() if line.strip() for message in unbatched(json.loads(line))]


def unbatched(value: Any) -> list[Message]:
    return value if isinstance(value, list) else [value]


# --- HTTP/1.1


@dataclass(frozen=True)
class Half:
    """A request, or a response, as far as it came."""

    status: int | None
    headers: Mapping[str, str]
    body: bytes


def exchanges(client: bytes, server: bytes) -> Iterator[tuple[Half, Half]]:
    """Each request of a TCP connection with its response, empty for one that has none yet."""
    responses = (half for half in halves(server) if half.status is None or half.status >= 200)
    for request in halves(client):
        yield request, next(responses, Half(None, {}, b""))


def halves(stream: bytes) -> Iterator[Half]:
    while True:
        head, end, stream = stream.partition(b"\r\n\r\n")
        if not end:
            return
        start, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
        status = int(start.split()[1]) if start.startswith("HTTP/") else None
        if headers.get("transfer-encoding") == "chunked":
            body, stream = chunks(stream)
        elif "content-length" in headers or status is None or status in (204, 304) or status < 200:
            length = int(headers.get("content-length", 0))
            body, stream = stream[:length], stream[length:]
        else:  # until the connection ends
            body, stream = stream, b""
        yield Half(status, headers, body)


def chunks(stream: bytes) -> tuple[bytes, bytes]:
    """The body so far, and what follows it."""
    body = b""
    while True:
        size, end, rest = stream.partition(b"\r\n")
        if not end:
            return body, b""
        length = int(size.partition(b";")[0], 16)
        body += rest[:length]
        stream = rest[length + 2 :]
        if not length:
            return body, stream


def messages(half: Half) -> list[Message]:
    kind = half.headers.get("content-type", "").partition(";")[0]
    assert "content-encoding" not in half.headers, f"can't be read: {half.headers}"
    if kind == "text/event-stream":
        return [message for data in events(half.body) for message in unbatched(json.loads(data))]
    if kind == "application/json" and len(half.body) == int(half.headers.get("content-length", len(half.body))):
        return unbatched(json.loads(half.body)) if half.body else []
    return []


def events(stream: bytes) -> Iterator[str]:
    """The data of each whole event that has some."""
    *whole, _ = stream.decode().replace("\r\n", "\n").split("\n\n")
    for event in whole:
        data = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        if any(data):
            yield "\n".join(data)
