"""The recorders of the matrix hold nothing back, and what they write down is read as it was said, and judged."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.judging import faults
from tests.matrix.recording import GATEWAY, connections
from tests.support.patience import PATIENCE
from tests.support.processes import Programs, accepts, free_port

HERE = Path(__file__).parent

VERSION = {"protocolVersion": "2025-03-26", "capabilities": {}}
GREET = {"id": 0, "method": "initialize", "params": {**VERSION, "clientInfo": {"name": "c", "version": "1"}}}
GREETED = {"id": 0, "result": {**VERSION, "serverInfo": {"name": "s", "version": "1"}}}
ASK = {"id": 1, "method": "tools/call", "params": {"name": "t"}}
ANSWER = {"id": 1, "result": {"content": []}}
STEP = {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}

Message = dict[str, Any]


def frame(message: Message) -> str:
    return json.dumps({"jsonrpc": "2.0", **message})


def half(start: str, body: str, kind: str = "application/json", *, chunked: bool = False) -> bytes:
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = f"{start}\r\nContent-Type: {kind}\r\n{length}\r\nMcp-Session-Id: s\r\n\r\n"
    return (head + (f"{len(body):x}\r\n{body}\r\n0\r\n\r\n" if chunked else body)).encode()


def post(*said: Message) -> bytes:
    return b"".join(half("POST /mcp HTTP/1.1", frame(message)) for message in said)


def stream(*said: Message) -> bytes:
    body = "".join(f"id: 1\ndata: {frame(message)}\n\n" for message in said)
    return half("HTTP/1.1 200 OK", body, "text/event-stream", chunked=True)


def record(folder: Path, name: str, client: bytes, server: bytes) -> None:
    (folder / f"{name}-1.client").write_bytes(client)
    (folder / f"{name}-1.server").write_bytes(server)


def test_a_tap_passes_each_piece_on_at_once_and_an_end_too(programs: Programs, tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        target = listener.getsockname()[1]
        command = [sys.executable, str(HERE / "tap.py"), str(tmp_path), f"{GATEWAY}={port}:{target}"]
        programs.start("tap", command, ready=accepts(port))
        listener.accept()[0].close()  # who looked whether it is ready
        client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        server, _ = listener.accept()
    with server:
        server.settimeout(PATIENCE)
        with client:
            for sender, receiver, said in ((client, server, post(ASK)), (server, client, stream(STEP)[:-5])):
                sender.sendall(said)
                assert receiver.recv(len(said), socket.MSG_WAITALL) == said
        assert server.recv(1) == b"", "the client's end is not passed on"
    asked, told = connections(tmp_path)[0].said.values()
    assert [message["method"] for message in (*asked, *told)] == ["tools/call", "notifications/progress"]


def test_a_tee_passes_each_line_on_at_once_and_the_servers_end_too(tmp_path: Path) -> None:
    command = [sys.executable, "-IS", str(HERE / "tee.py"), str(tmp_path), "a-1.2", "sh", "-c", "cat; exit 3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tee:
        assert tee.stdin is not None
        assert tee.stdout is not None
        print(frame(ASK), file=tee.stdin, flush=True)
        assert json.loads(tee.stdout.readline())["method"] == "tools/call"
        tee.stdin.close()
        assert tee.wait(PATIENCE) == 3
    (recorded,) = connections(tmp_path)
    assert recorded.name == "a-1.2"
    assert recorded.said["client"] == recorded.said["server"] != []


def test_a_tee_at_a_socket_passes_each_line_on_at_once_and_both_ends_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path := tmp_path / "socket"))
        listener.listen()
        listener.settimeout(PATIENCE)
        command = [sys.executable, "-IS", str(HERE / "tee.py"), str(tmp_path), "a-1.2", "--at", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tee:
            assert tee.stdin is not None
            assert tee.stdout is not None
            server, _ = listener.accept()
            with server, server.makefile("rw") as lines:
                server.settimeout(PATIENCE)
                print(frame(ASK), file=tee.stdin, flush=True)
                assert json.loads(lines.readline())["method"] == "tools/call"
                print(frame(ANSWER), file=lines, flush=True)
                assert json.loads(tee.stdout.readline())["id"] == 1
                tee.stdin.close()
                assert not lines.readline(), "the client's end is not passed on"
            assert tee.wait(PATIENCE) == 0
    (recorded,) = connections(tmp_path)
    assert [len(said) for said in recorded.said.values()] == [1, 1]


def test_a_session_over_many_requests_is_one_connection_and_batches_and_streams_are_read(tmp_path: Path) -> None:
    batch = half("HTTP/1.1 200 OK", f"[{frame(STEP)}, {frame(ANSWER)}]")
    accepted = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    asked = post(GREET, {"method": "notifications/initialized"}, ASK)
    record(tmp_path, GATEWAY, asked, stream(GREETED) + accepted + batch)
    (session,) = connections(tmp_path)
    assert session.revision == "2025-03-26"
    assert [message.get("method") for message in session.said["server"]] == [None, "notifications/progress", None]
    assert faults([session]) == []


def test_what_is_not_yet_whole_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, GATEWAY, post(GREET, ASK), stream(GREETED) + stream(STEP, ANSWER)[:-20])
    record(tmp_path, "on-stdio", frame(ASK).encode() + b"\n" + frame(ASK).encode()[:9], b"")
    assert [len(connection.said["server"]) for connection in connections(tmp_path)] == [2, 0]
    assert [len(connection.said["client"]) for connection in connections(tmp_path)] == [2, 1]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"id": 1, "result": {"content": [{"type": "resource_link", "uri": "a:b", "name": "n"}]}}, "no CallToolResult"),
        ({"id": 1, "error": {"code": -32042, "message": "m", "data": {"elicitations": []}}}, "has no error"),
        ({"id": 2, "result": {}}, "answers no request"),
        ({"method": "notifications/elicitation/complete", "params": {"elicitationId": "e"}}, "has no notification"),
        ({"id": 1, "method": "elicitation/create", "params": {}}, "has no request"),
    ],
)
def test_what_the_gateway_may_not_say_in_a_revision_is_shown_with_it(
    wrong: Message, complaint: str, tmp_path: Path
) -> None:
    record(tmp_path, GATEWAY, post(GREET, ASK), stream(GREETED) + stream(wrong))
    (fault,) = faults(connections(tmp_path))
    assert fault.startswith("said to a client in 2025-03-26: ")
    assert complaint in fault


def test_of_a_server_only_the_gateways_end_is_judged(tmp_path: Path) -> None:
    call = {**ASK, "params": {}}
    said, answered = f"{frame(GREET)}\n{frame(call)}\n", f"{frame(GREETED)}\n{frame({'method': 'nonsense'})}\n"
    record(tmp_path, "server", said.encode(), answered.encode())
    (fault,) = faults(connections(tmp_path))
    assert fault.startswith("said to server in 2025-03-26: ")
    assert "no CallToolRequest" in fault
