"""A worker that is no gateway: it answers each request with its process id, and keeps to the supervisor's channel.

Run as a program, as the supervisor runs workers: the last argument is the descriptor of the channel. Its first argument
says how it behaves: `serve`, `fail` (ends at once), `mute` (is never ready), `stay` (does not end when told to drain),
`linger` (takes a while to, as it says before), or a file: `fail` as long as that exists.

Many are started, so it imports little: what `gateway.workers.channel` says in types, it reads and writes as it is on
the wire.
"""

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from select import select
from threading import Lock, Thread
from typing import Any

from msgspec import msgpack

SAY_EVERY = 0.05
LINGERS = 2.0
SLOW = "/slow"
LENGTH = 4


class Stub:
    def __init__(self, behaviour: str, channel: socket.socket) -> None:
        self.behaviour = behaviour
        self.channel = channel
        self.channel.setblocking(True)
        self.unread = b""
        self.listeners: list[socket.socket] = []
        self.answering: list[Thread] = []
        self.answered = 0
        self.counting = Lock()
        self.draining = False
        self.gone = False
        self.says_at = 0.0

    def state(self, answers: int = 0) -> dict[str, Any]:
        numbers = {"stagedoor_http_responses_total": [(("GET", "200"), float(self.answered))]}
        return {
            "type": "State",
            "ready": self.behaviour != "mute" and not self.draining,
            "incarnation": f"of-{os.getpid()}",
            "numbers": numbers,
            "answers": answers,
            "details": {"sessions": 1},
            "ends_within": 60.0 if self.behaviour == "linger" else 0.0,
        }

    def send(self, message: dict[str, Any]) -> None:
        body = msgpack.encode(message)
        with suppress(OSError):  # the supervisor is gone
            self.channel.sendall(len(body).to_bytes(LENGTH, "big") + body)

    def tell(self, answers: int = 0) -> None:
        self.says_at = time.monotonic() + SAY_EVERY
        self.send(self.state(answers))

    def hear(self) -> None:
        try:
            data = self.channel.recv(65536)
        except OSError:
            data = b""
        self.gone = not data
        self.draining |= self.gone
        self.unread += data
        while len(self.unread) >= LENGTH:
            end = LENGTH + int.from_bytes(self.unread[:LENGTH], "big")
            if len(self.unread) < end:
                return
            message, self.unread = msgpack.decode(self.unread[LENGTH:end]), self.unread[end:]
            self.obey(message)

    def obey(self, message: dict[str, Any]) -> None:
        if message["type"] == "Hello":
            self.listeners = [socket.socket(fileno=one) for one in message["listeners"]]
        elif message["type"] == "Look":
            self.tell(message["number"])
        elif message["type"] == "Ask" and message["name"] != "nobody":
            body = {"pid": os.getpid(), "what": message["what"], "name": message["name"], **message["options"]}
            if message["what"] == "where":  # the session of this name belongs to the worker of this name
                body = {"key": message["name"], "owner": message["name"]}
            self.send({"type": "Told", "number": message["number"], "status": 200, "body": body})
        elif message["type"] == "Drain" and self.behaviour != "stay":
            self.draining = True

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # another worker was quicker
            return
        connection.setblocking(True)
        self.answering = [one for one in self.answering if one.is_alive()]
        self.answering.append(Thread(target=self.answer, args=(connection,)))
        self.answering[-1].start()

    def answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                data = connection.recv(65536)
                if not data:
                    return
                head += data
            if head.startswith(f"GET {SLOW}".encode()):
                time.sleep(0.5)
            body = str(os.getpid()).encode()
            with self.counting:
                self.answered += 1
            connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    def go_on(self) -> None:
        """Until something has come, or something is to be said."""
        wanted = [*([] if self.gone else [self.channel]), *self.listeners]
        for one in select(wanted, [], [], max(0.0, self.says_at - time.monotonic()))[0]:
            if one is self.channel:
                self.hear()
            else:
                self.accept(one)
        if time.monotonic() >= self.says_at:
            self.tell()

    def run(self) -> None:
        while not self.listeners:
            self.hear()
            assert not self.gone
        while not self.draining:
            self.go_on()
        while self.listeners:
            self.listeners.pop().close()
        while any(one.is_alive() for one in self.answering):
            self.go_on()
        end = time.monotonic() + (LINGERS if self.behaviour == "linger" else 0.0)
        while time.monotonic() < end:
            self.go_on()
        self.tell()


def main() -> None:
    behaviour, descriptor = sys.argv[1], int(sys.argv[2])
    if behaviour == "fail" or (behaviour.startswith("/") and Path(behaviour).exists()):
        sys.exit(3)
    Stub(behaviour, socket.socket(fileno=descriptor)).run()


if __name__ == "__main__":
    main()
