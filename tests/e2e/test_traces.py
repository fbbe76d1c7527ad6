"""Traces and logs of a real gateway: what a collector gets over the wire, and what is written."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.patience import PATIENCE
from tests.support.processes import Programs
from tests.support.raw import RawSession

pytestmark = pytest.mark.e2e

DEMO = {"mcpServers": {"demo": {"native": "gateway.native.demo:server"}}}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Collector:
    """Takes what is sent to it, and keeps it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.requests.append((self.path, self.headers.get("x-key", ""), body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> list[tuple[dict[str, str], Span]]:
        """With what is said of their sender."""
        found = []
        for _, _, body in self.requests:
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = {a.key: a.value.string_value for a in sent.resource.attributes}
                found += [(resource, span) for scope in sent.scope_spans for span in scope.spans]
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.server.shutdown()
    started.server.server_close()


def test_a_collector_gets_the_spans_of_a_call_and_the_logs_name_its_trace(
    programs: Programs, collector: Collector, tmp_path: Path
) -> None:
    access = tmp_path / "access.log"
    config = {
        **DEMO,
        "gateway": {
            "auth": {"tokens": {"alice": "the-token-of-alice"}},
            "traces": {"endpoint": collector.url, "headers": {"X-Key": "the-key-of-the-collector"}},
            "log": {"format": "json", "level": "debug", "requests": True, "access": "json", "accessFile": str(access)},
        },
    }
    gateway = programs.gateway(config)
    session = RawSession(gateway.endpoint(), "the-token-of-alice")
    [name] = [tool for tool in session.tools() if tool.endswith("__echo")]
    meta = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    session.ask(7, "tools/call", {"name": name, "arguments": {"text": "a secret"}, "_meta": meta})
    until(lambda: len([1 for _, s in collector.spans() if s.trace_id.hex() == TRACE]) == 2)
    with pytest.raises(AssertionError):
        RawSession(gateway.endpoint(), "a-token-of-nobody")
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as garbage:
        garbage.sendall(b"not http at all\r\n\r\n")
        assert garbage.recv(1000).startswith(b"HTTP/1.1 400")
    moved = tmp_path / "access.log.1"
    until(lambda: access.exists() and '"POST"' in access.read_text())
    access.rename(moved)
    session.tools()
    until(access.exists)
    gateway.program.stop()
    assert {(path, key) for path, key, _ in collector.requests} == {("/v1/traces", "the-key-of-the-collector")}
    spans = {span.kind: (resource, span) for resource, span in collector.spans() if span.trace_id.hex() == TRACE}
    resource, served = spans[Span.SPAN_KIND_SERVER]
    _, called = spans[Span.SPAN_KIND_CLIENT]
    assert resource["service.name"] == "stagedoor"
    assert resource["service.instance.id"]
    assert (served.parent_span_id.hex(), called.parent_span_id) == ("b7ad6b7169203331", served.span_id)
    assert served.name == f"tools/call {name}"
    assert 0 < served.start_time_unix_nano <= called.start_time_unix_nano <= called.end_time_unix_nano
    lines = [json.loads(line) for line in gateway.program.output().splitlines() if '"request"' in line]
    [line] = [line for line in lines if line.get("trace") == TRACE]
    assert (line["event"], line["method"], line["outcome"], line["backend"]) == (
        "request",
        "tools/call",
        "answered",
        "demo",
    )
    refused = {(line["outcome"], line["status"]) for line in lines if line["method"] == ""}
    assert refused == {("refused", 401), ("refused", 400)}
    written = [json.loads(text) for text in (moved.read_text() + access.read_text()).splitlines()]
    posts = [one for one in written if one["method"] == "POST"]
    assert {one["principal"] for one in posts if one["status"] != 401} == {"alice"}
    assert {one["status"] for one in written} >= {200, 401, 400}
    assert any(one.get("session") == line["session"] for one in posts)
    everything = gateway.program.output() + moved.read_text() + access.read_text()
    for hidden in ("the-token-of-alice", "the-key-of-the-collector", "a secret", session.headers["Mcp-Session-Id"]):
        assert hidden not in everything
        assert not any(hidden.encode() in body for _, _, body in collector.requests)


def test_a_collector_that_is_away_costs_spans_and_nothing_else(programs: Programs, collector: Collector) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    gateway = programs.gateway({**DEMO, "gateway": {"traces": {"endpoint": collector.url}}})
    session = RawSession(gateway.endpoint())
    for _ in range(20):
        session.tools()
    assert gateway.program.stop() == 0
