"""Clients, and the servers behind the gateway. Both write down what they see, and hold it against the laws at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors.machines.session import events as ev
from actors.protocol.messages import EMPTY, Request, Result
from tests.model.world import Breach, World
from tests.protocol.machines.driving import RESULTS, call, notification, raw

if TYPE_CHECKING:
    from tests.model.owner import Life
    from tests.model.replica import Replica

PATIENCE = 0.5


# Servers ----------------------------------------------------------------------------------------------------


@dataclass
class Execution:
    """One call at a server. What it says has numbers, by which a lasting server can be asked for the rest."""

    uid: str
    key: str
    lasting: bool
    asking: bool
    said: list[tuple[str, Any]] = field(default_factory=list)
    life: Life | None = None
    call: int = 0
    asked: bool = False
    answered: bool = False
    over: bool = False


class Servers:
    """All servers. They run what they are given, and say how often."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.executions: dict[str, Execution] = {}
        self.noted: set[int] = set()
        """Notes that an owner has taken."""
        self.never: dict[str, str] = {}
        """Calls of which a client was told that they were surely not executed, and how."""

    def execute(self, life: Life, call: int, key: str, uid: str) -> None:
        if uid in self.executions:
            raise Breach("law 2", f"{uid} is executed twice")
        if uid in self.never:
            raise Breach("law 2", f"{uid} is executed after its client was told otherwise: {self.never[uid]}")
        kind = uid.partition("-")[0]
        run = Execution(uid, key, kind != "volatile", kind == "asking", life=life, call=call)
        self.executions[uid] = run
        self.world.note("server executes", uid, "for", life)
        if kind == "quick":
            self.world.at(self.world.spell(0.005, 0.1), lambda: self._say(run, "result"))
            return
        self._say(run, "placed")
        delay = 0.0
        for _ in range(self.world.rng.randint(1, 4)):
            delay += self.world.spell(0.05, 1.2)
            self.world.at(delay, lambda: self._say(run, "progress"))
        last = "ask" if run.asking else "result"
        self.world.at(delay + self.world.spell(0.05, 1.2), lambda: self._say(run, last))

    def told_never(self, uid: str, how: str) -> None:
        self.never.setdefault(uid, how)
        if uid in self.executions:
            raise Breach("law 2", f"{uid} was executed, and its client is told otherwise: {how}")

    def resume(self, life: Life, call: int, uid: str, cursor: str) -> None:
        """The rest of an answer, for the next life."""
        run = self.executions[uid]
        run.life, run.call = life, call
        for index in range(int(cursor), len(run.said)):
            self._deliver(run, index)

    def answer(self, uid: str, ok: bool) -> None:
        """To a question, by the client or in its place."""
        run = self.executions[uid]
        if not run.answered and not run.over:
            run.answered = True
            self.world.at(self.world.spell(0.01, 0.2), lambda: self._say(run, "result"))

    def cancel(self, uid: str) -> None:
        self.executions[uid].over = True

    def lose(self, life: Life) -> None:
        """A process is gone, and with it the servers that live and die with it."""
        for run in self.executions.values():
            if run.life is life:
                run.life = None
                run.over = run.over or not run.lasting

    def _say(self, run: Execution, what: str) -> None:
        if run.over:
            return
        run.said.append((what, len(run.said) + 1))
        run.over = what == "result"
        self._deliver(run, len(run.said) - 1)

    def _deliver(self, run: Execution, index: int) -> None:
        life, call, (what, number) = run.life, run.call, run.said[index]
        if life is None:
            return
        place = ev.Place(run.uid, str(number)) if run.lasting else None
        now = self.world.now
        match what:
            case "placed":
                event: Any = ev.CallPlaced("L", call, place) if place is not None else None
            case "progress":
                params = {"progressToken": "t", "progress": number}
                event = ev.CallProgressed("L", call, "notifications/progress", raw(params), now, place)
            case "ask":
                event = ev.ServerRequested("L", call, f"ask of {run.uid}", "roots/list", EMPTY, place)
            case _:
                event = ev.CallEnded(call, True, raw(RESULTS["tools/call"]))
        if event is not None:
            life.replica.later(0.0, lambda: life.tell(event) if run.life is life else None)


# Clients ----------------------------------------------------------------------------------------------------


class Connection:
    """One HTTP exchange at one replica. `reader` is who waits for it."""

    def __init__(self, reader: Call | Note | Listener, at: Replica, key: str) -> None:
        self.reader = reader
        self.at = at
        self.key = key
        self.open = True
        self.gap = False
        """The gateway has said that something is missing before the next event."""
        at.connections.append(self)

    def sends(self, act: Callable[[], object]) -> None:
        """What comes over it reaches a process that runs."""
        self.at.later(0.001, lambda: act() if self.open else None)

    def answer(self, status: int, body: bytes = b"", *, certain: bool = False) -> None:
        """The whole answer. `certain`: the gateway says that nothing was executed."""
        if self.open:
            self.open = False
            self.reader.answered(status, body, certain)

    def event(self, stream: str, epoch: int, seq: int, data: bytes) -> None:
        if self.open:
            gap, self.gap = self.gap, False
            self.reader.event(stream, epoch, seq, data, gap)

    def close(self, why: str) -> None:
        if self.open:
            self.open = False
            self.reader.closed(why)


@dataclass
class Seen:
    """What came on one stream: contiguous, in order, once, but for a gap that the gateway has spoken of."""

    name: str
    epoch: int = 0
    seq: int = 0

    def take(self, stream: str, epoch: int, seq: int, gap: bool) -> None:
        if self.name and stream != self.name:
            raise Breach("law 3", f"an event of {stream} on {self.name}")
        if seq != self.seq + 1 and not (gap and seq > self.seq):
            raise Breach("law 3", f"{stream}: event {epoch}-{seq} after {self.epoch}-{self.seq}")
        if epoch < self.epoch:
            raise Breach("law 3", f"{stream}: event {epoch}-{seq} after {self.epoch}-{self.seq}")
        self.name, self.epoch, self.seq = stream, epoch, seq


class Clients:
    """All clients: every request and what came of it."""

    def __init__(self, world: World, servers: Servers) -> None:
        self.world = world
        self.servers = servers
        self.replicas: list[Replica] = []
        self.calls: list[Call] = []
        self.notes: list[Note] = []
        self.listeners: list[Listener] = []
        self.wire: dict[tuple[str, str, int, int], bytes] = {}

    def some(self) -> Replica | None:
        living = [replica for replica in self.replicas if replica.serving]
        return self.world.rng.choice(living) if living else None

    def saw(self, key: str, stream: str, epoch: int, seq: int, data: bytes) -> None:
        if self.wire.setdefault((key, stream, epoch, seq), data) != data:
            raise Breach("ids", f"{stream}:{epoch}-{seq} has two contents")
        message = json.loads(data) if data else {}
        own = {call.uid for call in self.calls if call.key == key}
        if "method" not in message and "id" in message and message["id"] not in own:
            raise Breach("sessions", f"{message} in {key}")


class Call:
    """One request: posted once, never again; resumed as often as it takes."""

    def __init__(self, clients: Clients, at: Replica, key: str, uid: str) -> None:
        self.clients, self.key, self.uid = clients, key, uid
        self.answers: list[dict[str, Any]] = []
        self.seen: Seen | None = None
        self.broken: str | None = None
        """Why nobody can expect an answer."""
        self.refusals = 0
        self.holder = at
        self.posted = clients.world.now
        clients.calls.append(self)
        self.connection = Connection(self, at, key)
        message = call(uid, token=f"token of {uid}")
        self.connection.sends(lambda: at.request(self.connection, message))

    @property
    def over(self) -> bool:
        return bool(self.answers) or self.broken is not None

    def answered(self, status: int, body: bytes, certain: bool) -> None:
        world = self.clients.world
        if status == 200:
            self._message(json.loads(body))
        elif self.seen is not None:  # a resumption that was refused
            if status == 503:
                self.refusals += 1
                world.at(PATIENCE, self.resume)
            else:
                self._end(f"the rest was refused: {status}")
        else:
            if certain:
                self.clients.servers.told_never(self.uid, f"{status}")
            self.answers.append({"error": {"code": status}})

    def event(self, stream: str, epoch: int, seq: int, data: bytes, gap: bool) -> None:
        self.seen = self.seen or Seen("")
        self.seen.take(stream, epoch, seq, gap)
        self.clients.saw(self.key, stream, epoch, seq, data)
        if data:
            self._message(json.loads(data))

    def _message(self, message: dict[str, Any]) -> None:
        if "method" in message:
            if "id" in message:
                Note(self.clients, self.key, Result(message["id"], raw({"roots": []})))
            return
        if message.get("id") != self.uid:
            raise Breach("sessions", f"{message} for {self.uid}")
        if self.answers:
            raise Breach("law 1", f"{self.uid} is answered twice: {self.answers[0]}, {message}")
        self.answers.append(message)
        error = message.get("error", {})
        if error and error.get("data", {}).get("executed") == "no":
            self.clients.servers.told_never(self.uid, json.dumps(error))

    def closed(self, why: str) -> None:
        """The connection ended, in whatever way."""
        self.clients.world.note("client of", self.uid, "loses its connection:", why)
        if self.over:
            return
        if self.seen is not None and why != "gap" and not self.connection.gap:
            self.clients.world.at(self.clients.world.spell(0.05, PATIENCE), self.resume)
        else:
            self._end(why)

    def resume(self) -> None:
        at, seen = self.clients.some(), self.seen
        if self.over or seen is None or self.connection.open:
            return
        if at is None:
            self.clients.world.at(PATIENCE, self.resume)
            return
        connection = self.connection = Connection(self, at, self.key)
        connection.sends(lambda: at.get(connection, seen.name, seen.epoch, seen.seq))

    def _end(self, why: str) -> None:
        self.broken = why
        excused = ("cut", "holder")
        store = self.clients.world.store
        if not self.answers and not why.startswith(excused) and not store.lossy and self.key not in store.ended:
            raise Breach("law 1", f"{self.uid} has no answer: {why}")

    def cancel(self) -> None:
        Note(self.clients, self.key, notification("notifications/cancelled", requestId=self.uid), self.holder)


class Note:
    """A notification or an answer: posted until it is accepted."""

    def __init__(self, clients: Clients, key: str, message: Any, at: Replica | None = None) -> None:
        self.clients, self.key, self.message = clients, key, message
        self.accepted = self.over = False
        self.tries = 0
        clients.notes.append(self)
        self.number = len(clients.notes)
        self._post(at)

    def _post(self, at: Replica | None = None) -> None:
        at = at if at is not None and at.serving else self.clients.some()
        self.tries += 1
        if at is None:
            self.clients.world.at(PATIENCE, self._post)
        else:
            connection = Connection(self, at, self.key)
            connection.sends(lambda: at.note(connection, self.message, self.number))

    def answered(self, status: int, body: bytes, certain: bool) -> None:
        self.accepted = status == 202
        self.over = status < 500
        if status >= 500:
            self.clients.world.at(PATIENCE, self._post)

    def event(self, stream: str, epoch: int, seq: int, data: bytes, gap: bool) -> None:
        raise Breach("law 3", "an event for a notification")

    def closed(self, why: str) -> None:
        self.clients.world.at(PATIENCE, self._post)


class Listener:
    """A GET stream, resumed for ever."""

    def __init__(self, clients: Clients, key: str) -> None:
        self.clients, self.key = clients, key
        self.seen: Seen | None = None
        self.connection: Connection | None = None
        clients.listeners.append(self)
        self._open()

    def _open(self) -> None:
        at, seen = self.clients.some(), self.seen
        if at is None:
            self.clients.world.at(PATIENCE, self._open)
            return
        connection = self.connection = Connection(self, at, self.key)
        place = (seen.name, seen.epoch, seen.seq) if seen is not None else (None, 0, 0)
        connection.sends(lambda: at.get(connection, *place))

    def answered(self, status: int, body: bytes, certain: bool) -> None:
        if status != 503:
            self.seen = None
        self.clients.world.at(PATIENCE, self._open)

    def event(self, stream: str, epoch: int, seq: int, data: bytes, gap: bool) -> None:
        self.seen = self.seen or Seen("")
        self.seen.take(stream, epoch, seq, gap)
        self.clients.saw(self.key, stream, epoch, seq, data)

    def closed(self, why: str) -> None:
        self.clients.world.at(PATIENCE, self._open)


def uid_of(message: Any) -> str | None:
    """The call that a message is, or cancels."""
    if isinstance(message, Request):
        return str(message.id)
    params = getattr(message, "params", None)
    return json.loads(bytes(params)).get("requestId") if params else None
