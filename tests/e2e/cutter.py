"""Passes TCP connections on, and breaks one of them: as a network does that loses a connection in the middle of a
stream."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

CHUNK = 65536  # bytes read at once
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset


class Cutter(socketserver.ThreadingTCPServer):
    """Takes connections to the target, and resets the first on which the target says `after`, right behind it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target: tuple[str, int], after: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.target = target
        self.after = after
        self.cuts = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def cut(self) -> bool:
        """Whether this connection is the one to be cut."""
        with self._lock:
            self.cuts += 1
            return self.cuts == 1

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that ends in the middle is nothing to report."""


class _Connection(socketserver.BaseRequestHandler):
    server: Cutter

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as onward:
            asking = threading.Thread(target=_copy, args=(self.request, onward), daemon=True)
            asking.start()
            self._answer(onward)

    def _answer(self, onward: socket.socket) -> None:
        # Behind the event that says it (and the end of its chunk), so that the client knows where it stands; and before
        # whatever came together with it.
        whole = re.compile(re.escape(self.server.after) + rb"[^\n]*\n\r?\n(?:\r\n)?")
        seen = b""
        while data := onward.recv(CHUNK):
            seen = seen[-CHUNK:] + data
            found = None if self.server.cuts else whole.search(seen)
            if found and self.server.cut():
                self.request.sendall(data[: found.end() - len(seen)] if found.end() < len(seen) else data)
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                return
            self.request.sendall(data)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def cutting(url: str, after: bytes) -> Iterator[Cutter]:
    """A cutter before the server at this URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    with Cutter((parts.hostname, parts.port), after) as cutter:
        thread = threading.Thread(target=cutter.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield cutter
        finally:
            cutter.shutdown()
            thread.join()
