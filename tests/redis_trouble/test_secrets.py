"""What is seen nowhere: ids of sessions, tokens of clients, credentials for servers, sealing keys. Two replicas do what
brings them near Redis, the log and the admin listener: mail, streams, a takeover, refusals."""

from __future__ import annotations

import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from actors.sessions.router import session_key
from gateway.store.redis.checks import RIGHTS
from tests.redis_trouble.conftest import Backend, Door, eventually
from tests.support.patience import PATIENCE
from tests.support.processes import Programs
from tests.support.raw import RawSession
from tests.support.redis_server import MISSING, RedisServer, installed

pytestmark = [pytest.mark.e2e, pytest.mark.redis]

TOKEN, CREDENTIAL, KEY = "ann-and-nobody-else", "of-the-gateway-alone", "5e" * 32
PASSWORD = "between-the-gateway-and-redis"
OVER = b"nothing-comes-after-this"
PAGES = ("/metrics", "/readyz?verbose", "/api/servers", "/api/sessions")


class Monitor:
    """All that a Redis is told."""

    def __init__(self, server: RedisServer) -> None:
        self.heard = b""
        self._socket = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        self._socket.sendall(b"MONITOR\r\n")
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        with self._socket:
            while OVER not in self.heard[-65536:]:
                self.heard += self._socket.recv(65536)

    def end(self) -> bytes:
        self._thread.join(PATIENCE)
        return self.heard


@pytest.fixture
def server() -> Iterator[RedisServer]:
    if not installed():
        pytest.skip(MISSING)
    with RedisServer() as running, running.client() as client:
        client.execute_command("ACL", "SETUSER", "door", "on", f">{PASSWORD}", *RIGHTS)
        yield running


def test_ids_of_sessions_tokens_and_credentials_are_seen_nowhere(
    server: RedisServer, backend: Backend, programs: Programs
) -> None:
    backend.config["mcpServers"]["alpha"]["headers"] = {"Authorization": f"Bearer {CREDENTIAL}"}
    gateway = {"keys": [KEY], "auth": {"tokens": {"ann": TOKEN}}, "log": {"level": "debug"}}
    monitor, store = Monitor(server), server.url.replace("//", f"//door:{PASSWORD}@")
    one, two = (
        Door(programs.gateway({**backend.config, "gateway": gateway}, "--store", store), backend) for _ in range(2)
    )
    session = RawSession(one.gateway.endpoint("alpha"), TOKEN)
    one.quick(session)
    stream, call = one.steps(session)
    call.say("1")
    stream.wait("1")
    session.go_to(two.gateway.endpoint("alpha"))
    two.quick(session)
    for header in ("Mcp-Session-Id", "Authorization"):
        kept, session.headers[header] = session.headers[header], "Bearer another"
        assert two.status(session)[0] in (401, 404)
        session.headers[header] = kept
    shown = b"".join(_page(door, path) for door in (one, two) for path in PAGES)
    one.gateway.program.send(signal.SIGKILL)
    eventually(lambda: two.status(session, stream.ids[0])[0] == 200)
    two.quick(session)
    shown += b"".join(_page(two, path) for path in PAGES)
    assert session.end() == 200
    assert two.gateway.program.stop() == 0
    with server.client() as client:
        client.set("sd:over", OVER)
        assert {entry["object"] for entry in client.acl_log()} <= {"client|setinfo"}, "it may do all that it does"
    told = monitor.end()
    logged = "".join(door.gateway.program.output() for door in (one, two)).encode()

    id = session.headers["Mcp-Session-Id"]
    assert session_key(id).encode() in told
    assert b"quick" in told, "what was mailed"
    assert backend.credentials == {f"Bearer {CREDENTIAL}"}
    for secret in (id, TOKEN, CREDENTIAL, KEY, PASSWORD, *backend.sessions):
        for where, text in {"Redis": told, "the log": logged, "the admin listener": shown}.items():
            assert secret.encode() not in text, f"{secret} is in {where}"


def _page(door: Door, path: str) -> bytes:
    with urllib.request.urlopen(f"{door.gateway.admin}{path}", timeout=PATIENCE) as answer:
        found: bytes = answer.read()
        return found
