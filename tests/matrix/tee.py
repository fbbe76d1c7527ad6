"""Runs a server on stdio, or connects to one at a Unix socket, and writes down what both ends say, byte by byte:

    tee.py FOLDER NAME COMMAND …
    tee.py FOLDER NAME --at SOCKET

Nothing is changed or held back. What the client says is in FOLDER/NAME-PID.client, what the server says in
FOLDER/NAME-PID.server, PID being that of this program.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

CHUNK = 65536  # bytes read at once


def copy(source: int, target: int, record: str) -> None:
    """Until one of them has ended."""
    with open(record, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while data := os.read(source, CHUNK):
            file.write(data)  # first, so that whoever has seen it finds it written
            while data:
                data = data[os.write(target, data) :]


def both_ways(record: str, to_server: int, from_server: int, hang_up: Callable[[], None]) -> None:
    """Until the server has said all. Its input ends, by `hang_up`, with the client's."""

    def ask() -> None:
        copy(sys.stdin.fileno(), to_server, f"{record}.client")
        with contextlib.suppress(OSError):  # it has hung up itself
            hang_up()

    threading.Thread(target=ask, daemon=True).start()
    copy(from_server, sys.stdout.fileno(), f"{record}.server")
    os.close(sys.stdout.fileno())


def connected(record: str, path: str) -> int:
    """To a server at this socket."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        both_ways(record, server.fileno(), server.fileno(), lambda: server.shutdown(socket.SHUT_WR))
    return 0


def started(record: str, *command: str) -> int:
    """With a server of its own, which has its exit status."""
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    both_ways(record, server.stdin.fileno(), server.stdout.fileno(), server.stdin.close)
    return server.wait()


def main(folder: str, name: str, *server: str) -> int:
    record = os.path.join(folder, f"{name}-{os.getpid()}")
    return connected(record, server[1]) if server[0] == "--at" else started(record, *server)


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    os._exit(status & 0xFF)  # the thread may still read
