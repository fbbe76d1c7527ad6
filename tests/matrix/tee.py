"""Runs a server on stdio, and writes down what both ends say, byte by byte:

    tee.py FOLDER NAME COMMAND …

Nothing is changed or held back. What the client says is in FOLDER/NAME-PID.client, what the server says in
FOLDER/NAME-PID.server, PID being that of this program.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

CHUNK = 65536  # bytes read at once


def copy(source: int, target: int, record: str) -> None:
    """Until one of them has ended."""
    with open(record, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while data := os.read(source, CHUNK):
            file.write(data)  # first, so that whoever has seen it finds it written
            while data:
                data = data[os.write(target, data) :]
    os.close(target)


def main(folder: str, name: str, *command: str) -> int:
    record = os.path.join(folder, f"{name}-{os.getpid()}")
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    asks = (sys.stdin.fileno(), server.stdin.fileno(), f"{record}.client")
    threading.Thread(target=copy, args=asks, daemon=True).start()
    copy(server.stdout.fileno(), sys.stdout.fileno(), f"{record}.server")
    return server.wait()


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    os._exit(status & 0xFF)  # the thread may still read
