"""The process and a Redis that it can't use: one clear line and status 1; and none, if it was told to stop."""

from __future__ import annotations

import json
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.patience import PATIENCE
from tests.support.processes import STAGEDOOR, Programs, answers, environment, free_port
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.e2e


def command(url: str) -> list[str]:
    return [str(STAGEDOOR), "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", url]


def refusal(url: str, *options: str) -> str:
    """The one line that says why it does not start."""
    done = subprocess.run(
        [*command(url), *options], capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "store_unusable" in line]
    return line


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """What listens, and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(PATIENCE)
        yield listener


def place(listener: socket.socket) -> str:
    return f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_stop_that_is_asked_for_while_redis_says_nothing_is_no_failure(
    number: signal.Signals, silent: socket.socket, programs: Programs
) -> None:
    program = programs.start("stagedoor", command(place(silent)))
    connection, _ = silent.accept()
    with connection:
        assert connection.recv(1)
        assert program.stop(number) == 0, program.story()
    assert "store_unusable" not in program.output(), "it waited for what never answers"


def test_a_redis_that_says_nothing_is_named(silent: socket.socket) -> None:
    assert f"no Redis answers at {place(silent)}" in refusal(place(silent))


@pytest.mark.redis
def test_one_without_tls_or_without_that_database_is_not_called_silent() -> None:
    with RedisServer() as server:
        assert "one without TLS has redis://" in refusal(server.url.replace("redis:", "rediss:"))
        line = refusal(f"{server.url.rpartition('/')[0]}/77")
        assert "DB index is out of range" in line
        assert "no Redis answers" not in line


@pytest.mark.redis
def test_a_redis_with_a_certificate_of_another_authority_is_named(tmp_path: Path) -> None:
    port, files, other = free_port(), Authority(tmp_path).issue("redis"), Authority(tmp_path, "other")
    options = ("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key))
    with RedisServer("--tls-port", str(port), "--tls-ca-cert-file", str(other.file), *options):
        line = refusal(f"rediss://:secret@127.0.0.1:{port}/0?ssl_ca_certs={other.file}")
    assert f"the certificate of rediss://127.0.0.1:{port}/0 is not trusted" in line
    assert "name the CA's file in the store URL, as ssl_ca_certs" in line
    assert "secret" not in line


@pytest.mark.redis
def test_a_replica_with_other_keys_than_a_living_one_is_refused(tmp_path: Path, programs: Programs) -> None:
    with RedisServer() as server:
        programs.gateway({"mcpServers": {}, "gateway": {"keys": ["0" * 64]}}, "--store", server.url)
        file = tmp_path / "other.json"
        file.write_text(json.dumps({"mcpServers": {}, "gateway": {"keys": ["1" * 64]}}))
        line = refusal(server.url, "--config", str(file))
        assert "another replica seals with other keys" in line
        assert "0" * 64 not in line
        file.write_text(json.dumps({"mcpServers": {}, "gateway": {"keys": ["1" * 64, "0" * 64]}}))
        programs.gateway(file, "--store", server.url)


class _Loading(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while self.request.recv(65536):
            self.request.sendall(b"-LOADING Redis is loading the dataset in memory\r\n")


def test_probes_are_answered_while_redis_reads_its_file(programs: Programs) -> None:
    admin = free_port()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Loading) as redis:
        redis.daemon_threads = True
        threading.Thread(target=redis.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{redis.server_address[1]}/0"
        program = programs.start("stagedoor", [*command(url), "--admin", f"127.0.0.1:{admin}"])
        program.wait_output("store_loading")
        assert answers(f"http://127.0.0.1:{admin}/livez")()
        assert answers(f"http://127.0.0.1:{admin}/readyz", 503)()
        assert answers(f"http://127.0.0.1:{admin}/metrics")()
        for operated in ("sessions", "config"):
            assert answers(f"http://127.0.0.1:{admin}/api/{operated}", 503)()
        assert program.stop() == 0
        redis.shutdown()
