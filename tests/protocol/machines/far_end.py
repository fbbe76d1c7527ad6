"""The far end of an upstream connection: a server that works on requests, asks, and remembers what it did."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from actors.machines.upstream import events as ue
from actors.protocol.messages import Error, Message, Notification, Request, RequestId, Result
from actors.protocol.transport import SessionLost
from tests.protocol.machines.driving import HELLO, LinkDriver, decode, raw


@dataclass
class Running:
    """A request that a server works on."""

    id: RequestId
    number: int | None
    progress: RequestId | None
    steps: int = 0


@dataclass
class Server:
    """The far end of an upstream connection. It numbers its questions from 1, so that two servers use the same ids."""

    name: str
    related: bool
    upstream: LinkDriver
    events: deque[Any] = field(default_factory=deque)
    """From the session, and from the transport, to the upstream connection."""
    frames: deque[tuple[RequestId | None, bytes]] = field(default_factory=deque)
    """From the upstream connection to the server."""
    up: bool = False
    knows_us: bool = False
    running: dict[RequestId, Running] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)
    """All it ever asked: question n is the n-th."""
    unanswered: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    executed: dict[int, int] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    retry: bool = False

    def say(self, message: Message, related: RequestId | None = None) -> None:
        self.events.append(ue.Incoming(message, related if self.related else None))

    def restart(self) -> None:
        """Whatever it worked on is gone, and what was on its way."""
        self.forget()
        self.frames.clear()

    def forget(self) -> None:
        self.running.clear()
        self.unanswered.clear()

    def hear_answer(self, id: RequestId | None) -> str:
        """Whose question this settles."""
        assert isinstance(id, int)
        assert id not in self.settled, "answered twice"
        self.settled.add(id)
        self.unanswered.discard(id)
        return self.questions[id - 1]

    def receive(self) -> None:
        """The next frame."""
        sent_as, frame = self.frames.popleft()
        message = decode(frame)
        match message:
            case Request(id, "initialize"):
                self.knows_us = True
                self.say(Result(id, raw(HELLO)), id)
            case _ if not self.knows_us:
                self.events.append(SessionLost(sent_as))
            case Request(id, "tools/call", params):
                value = json.loads(bytes(params))
                number = value["arguments"]["number"]
                self.executed[number] = self.executed.get(number, 0) + 1
                assert self.executed[number] == 1, "run twice"
                assert value["name"] == self.name
                token = value.get("_meta", {}).get("progressToken")
                assert token in (None, id), "a token of the client's"
                self.running[id] = Running(id, number, token)
            case Request(id):
                self.running[id] = Running(id, None, None)
            case Notification("notifications/cancelled", params):
                wanted = json.loads(bytes(params))["requestId"]
                ended = self.running.pop(wanted, None)
                if ended is not None and ended.number is not None:
                    self.cancelled.add(ended.number)
            case Result(id, result):
                whose = json.loads(bytes(result))["_meta"]["whose"]
                assert self.hear_answer(id) == whose, "an answer to another question"
            case Error(id, _):
                self.hear_answer(id)
