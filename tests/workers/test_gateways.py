"""Several real workers on one port: what clients and operators see while they are killed, replaced and drained."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from actors.sessions.router import session_key
from tests.e2e.test_old_records import comes_back, leave
from tests.support.patience import PATIENCE
from tests.support.ports import free_port
from tests.support.processes import Gateway, Programs, accepts, stagedoor
from tests.support.raw import RawSession, Stream

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

MODERN = "2026-07-28"
ANSWERS = r'stagedoor_http_responses_total{method="POST",status="200"}'


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of it."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return value


class Site:
    """Two workers, and clients of them."""

    def __init__(self, programs: Programs, servers: dict[str, Any], store: str) -> None:
        self.store = store
        self.config = {"mcpServers": servers}
        self.gateway: Gateway = programs.gateway(self.config, "--workers", "2", "--store", store)
        self.failures: list[str] = []
        self.answered = 0

    def admin(self, path: str, *others: int) -> Any:
        """What the admin listener says; `others`: statuses besides 200."""
        try:
            with urllib.request.urlopen(f"{self.gateway.admin}{path}", timeout=PATIENCE) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code not in others:
                raise
            return error.read().decode()

    def workers(self) -> list[int]:
        """Process ids of those that are ready."""
        state = json.loads(self.admin("/readyz", 503))
        return [worker["pid"] for worker in state["workers"] if worker["ready"]]

    def both(self) -> list[int]:
        """The same, when there are two and no others."""

        def look() -> list[int]:
            state = json.loads(self.admin("/readyz", 503))
            ready = [worker["pid"] for worker in state["workers"] if worker["ready"]]
            return ready if len(ready) == len(state["workers"]) == 2 and not state["degraded"] else []

        found: list[int] = until(look)
        return found

    def counted(self) -> float:
        page = self.admin("/metrics")
        return sum(float(value) for value in re.findall(rf"^{re.escape(ANSWERS)} (\S+)$", page, re.MULTILINE))

    def call(self, connection: http.client.HTTPConnection, number: int) -> None:
        """One call of a client without a session."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        }
        params = {"name": "echo", "arguments": {"n": number}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call",
            "Mcp-Name": "echo",
        }
        connection.request("POST", "/mcp/numbers", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        assert str(number) in json.dumps(json.loads(text).get("result", {}).get("content")), text

    @contextmanager
    def traffic(self, clients: int = 6, sessions: int = 0, old: Sequence[RawSession] = ()) -> Iterator[None]:
        """Clients that call without end, each on a connection that it keeps as long as it is let, and those with
        sessions (or with `old` ones, after what these have left), with a connection for each call; what fails is
        noted."""
        over = threading.Event()
        threads = [threading.Thread(target=self._keep_calling, args=(over,)) for _ in range(clients)]
        threads += [threading.Thread(target=self._keep_session, args=(over,)) for _ in range(sessions)]
        threads += [threading.Thread(target=self._keep_old_session, args=(over, session)) for session in old]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE)

    def _keep_calling(self, over: threading.Event) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.gateway.url).netloc, timeout=PATIENCE)
        number = 0
        while not over.is_set():
            number += 1
            try:
                self.call(connection, number)
                self.answered += 1
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            time.sleep(0.01)
        connection.close()

    def _keep_old_session(self, over: threading.Event, session: RawSession) -> None:
        try:
            comes_back(session)
        except (OSError, AssertionError, http.client.HTTPException) as error:
            self.failures.append(repr(error))
        self._keep_session(over, session, 100)

    def _keep_session(self, over: threading.Event, session: RawSession | None = None, number: int = 0) -> None:
        session = session or RawSession(self.gateway.endpoint("plain"))
        while not over.is_set():
            number += 1
            try:
                tool, arguments = ("echo", {"n": number}) if number % 3 else ("slow", {"n": number, "seconds": 0.5})
                text = str(self._outcome(session, number, tool, arguments))
                assert f"{number}: " in text, text
                self.answered += 1
            except (OSError, AssertionError, http.client.HTTPException) as error:
                self.failures.append(f"{time.strftime('%H:%M:%S')} {number} {error!r}")
            time.sleep(0.01)

    def _outcome(self, session: RawSession, number: int, tool: str, arguments: dict[str, Any]) -> Any:
        """The answer of a call, wherever its stream goes on."""
        params = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        connection = session.send("POST", json.dumps(message), {})
        last = None
        while True:
            response = connection.getresponse()
            if response.headers.get_content_type() != "text/event-stream":
                found = json.loads(response.read())
                connection.close()
                return found
            with Stream(connection, response) as stream:
                for event in stream.events():
                    last = event.id or last
                    if event.message is not None and event.message.get("id") == number:
                        return event.message
            assert last is not None, "a stream without an id has ended"
            connection = session.send("GET", None, {"Last-Event-ID": last})

    def more(self, number: int = 50) -> None:
        """Until so many more calls were answered."""
        before = self.answered
        until(lambda: self.answered >= before + number)


@pytest.fixture(scope="module")
def servers(shared_programs: Programs) -> dict[str, Any]:
    """What stands behind the gateways."""

    def start(module: str) -> dict[str, Any]:
        port = free_port()
        shared_programs.start(module, [sys.executable, "-m", module, "--port", str(port)], ready=accepts(port))
        return {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}

    plain = start("loadtest.backend")
    return {"numbers": start("loadtest.modern_backend"), "plain": plain, "slow": plain}


@pytest.fixture
def site(programs: Programs, servers: dict[str, Any], redis_url: str) -> Site:
    started = Site(programs, servers, redis_url)
    started.both()
    return started


def test_two_workers_are_one_gateway_to_operators(site: Site) -> None:
    servers = json.loads(site.admin("/api/servers"))
    assert [server["name"] for server in servers["servers"]] == ["numbers", "plain", "slow"]
    assert servers["listen"] == urlsplit(site.gateway.url).netloc
    with site.traffic():
        site.more()
    assert not site.failures
    assert site.counted() == site.answered
    page = site.admin("/metrics")
    assert 'stagedoor_workers{state="ready"} 2.0' in page
    assert "stagedoor_store_up 1.0" in page
    assert json.loads(site.admin("/readyz?verbose"))["status"] == "ready"
    assert site.admin("/livez") == site.admin("/healthz")


def test_a_killed_worker_is_replaced_and_what_it_counted_stays(site: Site) -> None:
    with site.traffic():
        site.more()
        victim = site.both()[0]
        counted = site.counted()
        assert counted
        os.kill(victim, signal.SIGKILL)
        seen = [counted]
        until(lambda: seen.append(site.counted()) or victim not in site.both())
        site.more()
        seen.append(site.counted())
    assert seen == sorted(seen), "a sum fell"
    assert len(site.failures) <= 12, site.failures  # those that the dead one was answering, or held
    assert "stagedoor_worker_deaths_total 1.0" in site.admin("/metrics")
    with site.traffic(1):
        site.more(5)


def test_a_worker_that_stands_still_is_replaced_and_nobody_waits_for_it(site: Site) -> None:
    victim, other = site.both()
    os.kill(victim, signal.SIGSTOP)
    with site.traffic(clients=0, sessions=4):  # of which it may own none: they begin at whichever worker accepts
        site.more()
        until(lambda: victim not in site.workers())
        until(lambda: victim not in site.gateway.program.family())
        assert other in site.both()
        site.more()
    assert not site.failures


def accepted(port: int, client: int) -> bool:
    """Whether a process has taken this connection of a client from those that wait at a port."""
    ends = f":{port:04X}", f":{client:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    [inode] = [row[9] for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1])]
    return inode != "0"


def test_the_supervisor_takes_no_client_and_is_not_ready_without_a_worker(site: Site) -> None:
    workers = site.both()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    where = urlsplit(site.gateway.url)
    with socket.create_connection((where.hostname, where.port), PATIENCE) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        until(lambda: json.loads(site.admin("/readyz", 503))["workers"] and not site.workers())
        states = [(one["worker"], one["state"]) for one in json.loads(site.admin("/readyz", 503))["workers"]]
        assert states == [(0, "silent"), (1, "silent")]
        assert not accepted(where.port or 0, client.getsockname()[1])
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        client.settimeout(PATIENCE)
        assert client.recv(12) == b"HTTP/1.1 200"


def test_the_lease_of_a_killed_worker_is_ended_at_once(site: Site) -> None:
    state = json.loads(site.admin("/readyz"))
    victim = state["workers"][0]
    with redis.Redis.from_url(site.store) as client:
        key = f"sd:r:{{{victim['incarnation']}}}:alive"
        os.kill(site.gateway.program.pid, signal.SIGSTOP)  # the supervisor sees nothing yet
        client.pexpire(key, 3_600_000)
        os.kill(victim["pid"], signal.SIGKILL)
        assert client.exists(key)
        client.pexpire(key, 3_600_000)
        os.kill(site.gateway.program.pid, signal.SIGCONT)
        until(lambda: not client.exists(key))


def test_a_rolling_restart_replaces_all_and_no_call_fails(site: Site) -> None:
    former = set(site.both())
    with site.traffic():
        site.more()
        site.gateway.program.send(signal.SIGUSR2)
        until(lambda: "rolling_restart_done" in site.gateway.program.output())
        site.more()
    assert not site.failures
    assert not former & set(site.both())
    assert not former & set(site.gateway.program.family())
    assert site.counted() == site.answered


def test_sessions_go_on_through_a_rolling_restart_and_no_call_of_theirs_fails(site: Site) -> None:
    former = set(site.both())
    with site.traffic(clients=2, sessions=6):
        site.more()
        site.gateway.program.send(signal.SIGUSR2)
        until(lambda: "rolling_restart_done" in site.gateway.program.output())
        site.more()
    assert not site.failures
    assert not former & set(site.both())


def sessions(site: Site, *words: str) -> dict[str, Any]:
    """What `stagedoor sessions` says to programs."""
    where = ("--url", site.gateway.endpoint(), "--admin", site.gateway.admin, "--json")
    done = stagedoor("sessions", *words, *where)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def left_session(site: Site, name: str) -> RawSession:
    """One of the previous version, whose owner is no more."""
    session = RawSession(site.gateway.endpoint("slow"))
    session.headers["Mcp-Session-Id"] = name
    leave(site.store, session_key(name))
    return session


def test_sessions_of_the_previous_version_go_on_through_a_rolling_restart(site: Site) -> None:
    """They come in while both old and new workers run."""
    # A replica takes nothing over before it has lived for as long as a lease: so long the first that comes waits.
    assert left_session(site, "first").ask(100, "ping")["result"] == {}
    old = [left_session(site, f"old-{number}") for number in range(12)]
    former = set(site.both())
    with site.traffic(clients=2, sessions=2, old=old[:6]):
        site.more()
        site.gateway.program.send(signal.SIGUSR2)
        with site.traffic(clients=0, old=old[6:]):
            until(lambda: "rolling_restart_done" in site.gateway.program.output())
            site.more()
    assert not site.failures
    assert not former & set(site.both())


def test_a_session_is_listed_moved_and_ended_whichever_worker_has_it(site: Site) -> None:
    session = RawSession(site.gateway.endpoint("plain"))
    listed = sessions(site, "list")
    [entry] = listed["sessions"]
    assert len([replica for replica in listed["replicas"] if replica["alive"]]) == 2
    assert entry["idle"] is not None, "each worker is asked for its own"
    moved = sessions(site, "move", entry["handle"])
    assert moved["to"] != entry["owner"]
    [after] = sessions(site, "list")["sessions"]
    assert (after["key"], after["owner"]) == (entry["key"], moved["to"])
    for _ in range(6):
        assert session.tools()
    assert sessions(site, "end", entry["handle"])["ended"]
    assert "error" in session.ask(1, "tools/list")


def test_all_end_with_the_supervisor_in_order(site: Site) -> None:
    site.gateway.program.send(signal.SIGHUP)
    site.gateway.program.wait_output("configuration_unchanged")
    assert site.gateway.program.stop() == 0
    site.gateway.program.wait_alone()


def test_all_end_when_the_supervisor_is_killed_and_another_can_take_its_place(site: Site, programs: Programs) -> None:
    os.kill(site.gateway.program.pid, signal.SIGKILL)
    site.gateway.program.wait_alone()
    again = programs.gateway(site.config, "--workers", "2", "--store", site.store, in_place_of=site.gateway)
    assert again.program.stop() == 0


def test_a_second_signal_ends_all_at_once(site: Site) -> None:
    site.gateway.program.send(signal.SIGTERM)
    site.gateway.program.wait_output("draining")
    assert site.gateway.program.stop() == 1
    site.gateway.program.wait_alone()
