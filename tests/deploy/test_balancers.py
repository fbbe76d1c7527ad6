"""nginx and HAProxy with the configurations of `deploy/`: three real replicas behind them, and servers that break off
in the middle of a request."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import yaml

from actors.protocol.table import Limits
from gateway.lifecycle import longest_drain
from tests.deploy.balancers import haproxy, nginx
from tests.deploy.visitor import Visitor
from tests.support.patience import PATIENCE
from tests.support.processes import ROOT, STAGEDOOR, Gateway, Programs, need
from tests.support.redis_server import RedisServer, installed

BALANCERS = {"nginx": nginx, "haproxy": haproxy}
HASHED = {"nginx": partial(nginx, hashed=True), "haproxy": partial(haproxy, choice="By the hash")}

Make = Callable[..., str]


@pytest.fixture(scope="module")
def replicas(shared_programs: Programs) -> Iterator[list[Gateway]]:
    """Three on one Redis, in front of a server over HTTP, so that sessions can move."""
    need(installed(), "redis-server is")
    with RedisServer() as redis:
        server = shared_programs.gateway({"mcpServers": {"demo": {"native": "gateway.native.demo:server"}}})
        config = {
            "mcpServers": {"demo": {"url": server.endpoint("demo")}},
            "gateway": {"store": redis.url, "keys": ["ab" * 32]},
        }
        yield [shared_programs.gateway(config) for _ in range(3)]


def addresses(replicas: list[Gateway]) -> list[str]:
    return [replica.url.removeprefix("http://") for replica in replicas]


def counted(replicas: list[Gateway], sample: str) -> int:
    """The sum of one counter over all replicas; `sample` is a pattern of its name and labels."""
    total = 0.0
    for replica in replicas:
        with urllib.request.urlopen(f"{replica.admin}/metrics", timeout=PATIENCE) as response:
            total += sum(map(float, re.findall(rf"^{sample} (\S+)", response.read().decode(), re.MULTILINE)))
    return int(total)


mailed = partial(counted, sample=r'stagedoor_letters_sent_total\{kind="deliver"\}')


class Session:
    """A legacy session that keeps no stream open: the plainest client that there is."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/mcp"
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
        self._post({"id": 1, "method": "initialize", "params": about})
        self._headers["MCP-Protocol-Version"] = "2025-11-25"
        self._post({"method": "notifications/initialized"})

    def call(self) -> None:
        params = {"name": "demo__echo", "arguments": {"text": "hello"}}
        assert "hello" in self._post({"id": 2, "method": "tools/call", "params": params})

    def _post(self, message: dict[str, object]) -> str:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        with urllib.request.urlopen(
            urllib.request.Request(self._url, body, self._headers), timeout=PATIENCE
        ) as response:
            if session := response.headers["Mcp-Session-Id"]:
                self._headers["Mcp-Session-Id"] = session
            return str(response.read().decode())


@pytest.mark.parametrize("make", BALANCERS.values(), ids=BALANCERS)
def test_any_replica_serves_a_session_and_events_come_as_they_are_sent(
    make: Make, replicas: list[Gateway], programs: Programs, tmp_path: Path
) -> None:
    before = mailed(replicas)
    with Visitor(f"{make(programs, tmp_path, addresses(replicas))}/mcp", tmp_path / "visitor.log") as visitor:
        assert visitor.do("calls") == 9
        assert visitor.do("progress") >= 1
    assert mailed(replicas) > before, "every request came to the replica that had the session"


@pytest.mark.parametrize("make", HASHED.values(), ids=HASHED)
def test_with_hashing_a_session_comes_to_where_its_hash_leads_and_nothing_is_mailed(
    make: Make, replicas: list[Gateway], programs: Programs, tmp_path: Path
) -> None:
    url, end = make(programs, tmp_path, addresses(replicas)), time.monotonic() + PATIENCE

    def mailed_for(session: Session, calls: int) -> int:
        before = mailed(replicas)
        for _ in range(calls):
            session.call()
        return mailed(replicas) - before

    # The first request of a session has no id that could be hashed: it is opened anywhere.
    strangers = (session for session in (Session(url) for _ in range(50)) if mailed_for(session, 1))
    session = next(strangers)
    # A replica that was too busy to answer a balancer's probe is left out for a while, and the hash leads elsewhere.
    while mailed_for(session, 10):
        assert time.monotonic() < end, "the session stays where its hash does not lead"


def test_haproxy_can_keep_a_session_where_it_was_opened(
    replicas: list[Gateway], programs: Programs, tmp_path: Path
) -> None:
    url = haproxy(programs, tmp_path, addresses(replicas), choice="Where the session was opened")
    before = mailed(replicas)
    with Visitor(f"{url}/mcp", tmp_path / "visitor.log") as visitor:
        assert visitor.do("calls") == 9
    session = Session(url)
    for _ in range(3):
        session.call()
    assert mailed(replicas) == before


BEYOND_MCP = (
    "/connect",
    "/connect/callback?state=x",
    "/.well-known/oauth-protected-resource/mcp",
    "/messages?sessionId=x",
    "/healthz",
)
"""Paths of the public listener beside the endpoints (docs/endpoints.md)."""


@pytest.mark.parametrize(
    "make", [*BALANCERS.values(), *HASHED.values()], ids=[*BALANCERS, *map("{}-hashed".format, HASHED)]
)
def test_every_public_path_comes_through_and_so_do_the_older_transports(
    make: Make, replicas: list[Gateway], programs: Programs, tmp_path: Path
) -> None:
    url = make(programs, tmp_path, addresses(replicas))

    def said(base: str, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"{base}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()

    for path in BEYOND_MCP:
        assert said(url, path) == said(replicas[0].url, path), path
    with urllib.request.urlopen(f"{url}/sse", timeout=PATIENCE) as stream:
        assert stream.readline() == b"event: endpoint\n"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw==", "Sec-WebSocket-Protocol": "mcp"}
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    connection.request("GET", "/ws", headers=upgrade)
    assert connection.getresponse().status == 101
    connection.close()


class Breaking:
    """A replica that takes requests and breaks off without an answer. It counts them by method."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.posts = 0

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    head = connection.recv(65536)
                    if head.startswith(b"POST"):
                        self.posts += 1
                    elif head.startswith(b"GET /healthz"):
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def breaking(count: int) -> Iterator[list[Breaking]]:
    servers = [Breaking() for _ in range(count)]
    threads = [threading.Thread(target=server.serve) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server in servers:
            server.close()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "make", [*BALANCERS.values(), *HASHED.values()], ids=[*BALANCERS, *map("{}-hashed".format, HASHED)]
)
def test_a_post_that_was_sent_is_not_sent_to_another_replica(make: Make, programs: Programs, tmp_path: Path) -> None:
    with breaking(3) as servers:
        url = make(programs, tmp_path, [server.address for server in servers])
        for number in range(1, 4):
            request = urllib.request.Request(f"{url}/mcp", b"{}", {"Mcp-Session-Id": str(number)})
            with pytest.raises(urllib.error.HTTPError) as failed:
                urllib.request.urlopen(request, timeout=PATIENCE)
            with failed.value as answer:
                assert answer.code in (502, 503)
            assert sum(server.posts for server in servers) <= number, "one was repeated"
        assert sum(server.posts for server in servers) >= 1


@pytest.mark.parametrize("make", BALANCERS.values(), ids=BALANCERS)
def test_a_post_goes_to_another_replica_where_no_connection_was_made(
    make: Make, replicas: list[Gateway], programs: Programs, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = f"127.0.0.1:{gone.getsockname()[1]}"
    one, *_ = addresses(replicas)
    session = Session(make(programs, tmp_path, [nobody, one, one]))
    for _ in range(4):
        session.call()


def test_read_timeouts_are_above_the_keep_alive_and_the_longest_request() -> None:
    limits = Limits()
    assert limits.keep_alive < limits.request_deadline_cap
    hour = int(limits.request_deadline_cap)
    assert hour == 3600
    assert "proxy_read_timeout 1h;" in (ROOT / "deploy/nginx/stagedoor.conf").read_text()
    assert re.findall(r"timeout (client|server|tunnel) 1h\n", (ROOT / "deploy/haproxy/haproxy.cfg").read_text()) == [
        "client",
        "server",
        "tunnel",
    ]
    assert f"stream_idle_timeout: {hour}s" in (ROOT / "deploy/envoy/envoy.yaml").read_text()


def test_envoy_repeats_only_what_found_no_connection_and_hashes_by_the_session() -> None:
    text = (ROOT / "deploy/envoy/envoy.yaml").read_text()
    for content in (text, text.replace("# hash_policy", "hash_policy")):
        listener = yaml.safe_load(content)["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
        assert route["retry_policy"]["retry_on"] == "connect-failure"
        assert route["timeout"] == "0s"
    assert route["hash_policy"] == [{"header": {"header_name": "mcp-session-id"}}]


def test_the_unit_of_systemd_is_one_and_gives_time_to_drain(tmp_path: Path) -> None:
    text = (ROOT / "deploy/systemd/stagedoor.service").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > longest_drain(Limits())
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    unit = tmp_path / "stagedoor.service"
    unit.write_text(text.replace("/opt/stagedoor/bin/stagedoor", str(STAGEDOOR)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "stagedoor" in line]
    assert not said, said
