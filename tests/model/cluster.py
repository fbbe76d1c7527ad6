"""A cluster under a plan of faults, and the laws that must hold at its end:

1. The outcome of a request lives in one place: on the connection that it came on, or in the log from the acknowledged
   opening of its stream on.
2. What may have been sent to a server is never sent again, by anyone.
3. The log is the truth, mail is a hint: event n + 1 of a stream is written after event n, or the log is read.
4. Leases decide when something is done, the fence of every write decides whether.
5. Only `create` and `restore` make a record: a late writer never raises the dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from actors.machines.cluster import lease as le
from actors.machines.session import events as ev
from actors.machines.session import record as session_record
from actors.protocol.messages import EMPTY
from tests.model.people import Call, Clients, Listener, Servers
from tests.model.replica import Cancels, Replica
from tests.model.store import Bug
from tests.model.world import Breach, Weather, World
from tests.protocol.machines.driving import NEWEST, OLD, SessionDriver

REPLICAS = ("a", "b", "c")
SESSIONS = {"alpha": NEWEST, "beta": OLD}
KINDS = ("quick", "slow", "slow", "asking", "volatile")
CALM = 45.0
"""Seconds without faults in which everything must end."""


@dataclass(frozen=True)
class Step:
    """After `wait` seconds, `what` happens; the other members say where and how, as far as that matters."""

    what: str
    wait: float = 0.1
    where: int = 0
    how: int = 0
    long: float = 1.0


class Cluster:
    def __init__(self, seed: int, bug: Bug | None = None) -> None:
        self.world = World(seed, bug)
        self.servers = Servers(self.world)
        self.clients = Clients(self.world, self.servers)
        self.cancels = Cancels()
        self._starts = count(1)
        self._uids = count(1)
        for key, version in SESSIONS.items():
            session = SessionDriver(version).initialize().session
            fields = {**session_record.birth("", "mcp"), **session_record.handshake(session)}
            self.world.store.create(key, {name: value for name, value in fields.items() if value is not None})
        self.slots: list[Replica] = [self._start(name) for name in REPLICAS]
        self.world.run(le.TTL + 1)

    def _start(self, name: str) -> Replica:
        replica = Replica(self.world, f"{name}{next(self._starts)}", self.servers, self.cancels)
        self.clients.replicas.append(replica)
        return replica

    def run(self, plan: list[Step]) -> None:
        for step in plan:
            self.world.run(step.wait)
            self.world.note("---", step)
            getattr(self, step.what)(step)
        self.world.note("--- calm")
        self.world.weather = Weather()
        for replica in self.slots:
            if replica.stopped:
                replica.wake()
        self.world.run(CALM)
        self.check()

    # What clients do

    def key(self, step: Step) -> str:
        return list(SESSIONS)[step.how % 2]

    def call(self, step: Step) -> None:
        at = self.slots[step.where % len(REPLICAS)]
        if at.serving:
            uid = f"{KINDS[step.how // 2 % len(KINDS)]}-{next(self._uids)}"
            Call(self.clients, at, self.key(step), uid)

    def cancel(self, step: Step) -> None:
        """A call, and at once its cancellation."""
        self.call(step)
        if self.clients.calls and not self.clients.calls[-1].over and self.clients.calls[-1].holder.serving:
            self.clients.calls[-1].cancel()

    def listen(self, step: Step) -> None:
        if all(listener.key != self.key(step) for listener in self.clients.listeners):
            Listener(self.clients, self.key(step))

    def announce(self, step: Step) -> None:
        for replica in self.slots:
            life = replica.lives.get(self.key(step))
            if life is not None:
                event = ev.CallProgressed("L", None, "notifications/tools/list_changed", EMPTY, self.world.now)
                replica.later(0.0, lambda: life.tell(event))  # noqa: B023
                return

    def end(self, step: Step) -> None:
        """A session ends for good, where it is served."""
        for replica in self.slots:
            life = replica.lives.get(self.key(step))
            if life is not None and not replica.dead and not replica.stopped:
                replica.later(0.0, lambda: life.tell(ev.Ended("delete")))  # noqa: B023
                return

    def cut(self, step: Step) -> None:
        open_ones = [call.connection for call in self.clients.calls if call.connection.open]
        open_ones += [x.connection for x in self.clients.listeners if x.connection is not None and x.connection.open]
        if open_ones:
            connection = open_ones[step.how % len(open_ones)]
            connection.at.later(0.0, lambda: connection.at.cut(connection))

    # What happens to processes

    def kill(self, step: Step) -> None:
        replica = self.slots[step.where % len(REPLICAS)]
        if replica.dead:
            return
        self.world.note("kill", replica.inc)
        self._end(replica, step.where % len(REPLICAS))

    def _end(self, replica: Replica, slot: int) -> None:
        replica.dead = True
        for life in list(replica.lives.values()):
            self.servers.lose(life)
        replica.hang_up("holder killed")
        self.clients.replicas.remove(replica)
        name = REPLICAS[slot]

        def start() -> None:
            self.slots[slot] = self._start(name)

        self.world.at(self.world.spell(0.5, 4.0), start)

    def pause(self, step: Step) -> None:
        replica = self.slots[step.where % len(REPLICAS)]
        if replica.dead or replica.stopped:
            return
        replica.stop()
        self.world.at(step.long * 3, replica.wake)

    def drain(self, step: Step) -> None:
        replica, slot = self.slots[step.where % len(REPLICAS)], step.where % len(REPLICAS)
        if replica.dead or replica.draining or replica.stopped:
            return

        def deadline() -> None:
            for life in list(replica.lives.values()):
                life.release()
            replica.later(0.3, gone)

        def gone() -> None:
            replica.leave()
            replica.later(0.1, lambda: self._end(replica, slot))

        replica.draining = True
        replica.later(step.long, deadline)

    def move(self, step: Step) -> None:
        for replica in self.slots:
            life = replica.lives.get(self.key(step))
            if life is not None and not replica.dead:
                replica.later(0.0, life.release)

    # What happens to lines and the store

    def weather(self, step: Step) -> None:
        kinds = (Weather(), Weather(0.2), Weather(0, 0.5), Weather(0, 0, 0.4), Weather(0, 0, 0, 0.3))
        self.world.weather = (*kinds, Weather(0.1, 0.1, 0.1, 0.1))[step.how % 6]

    def stall(self, step: Step) -> None:
        self.world.stalled = self.world.now + step.long

    def lose(self, step: Step) -> None:
        """Some time from now the store goes back to what it is now."""
        before = self.world.store.snapshot()

        def back() -> None:
            self.world.lose_writes(before)

        self.world.at(step.long, back)

    # The end

    def check(self) -> None:
        store = self.world.store
        if store.reused:
            raise Breach("ids", f"{store.reused} were given to two events")
        for key in SESSIONS:
            if key not in store.data.sessions:
                raise Breach("law 5", f"{key} is gone")
        for key, session in store.data.sessions.items():
            if key not in SESSIONS or not session.fields:
                raise Breach("law 5", f"{key} was made of nothing")
            if key in store.ended and not session.ended and not store.lossy:
                raise Breach("law 5", f"{key} has ended, and is there again")
        for call in self.clients.calls:
            if not call.over:
                raise Breach("liveness", f"{call.uid} of {call.key} has no end")
            if call.uid in self.cancels.early:
                raise Breach("one queue", f"the cancel of {call.uid} came before it")
        for note in self.clients.notes:
            if not note.over and note.tries < 3:
                raise Breach("liveness", f"{note.message} has no end")
            if note.accepted and note.number not in self.servers.noted:
                raise Breach("notes", f"{note.message} was accepted, and reached nobody")
        self._check_sessions()
        self._check_listeners()

    def _check_sessions(self) -> None:
        """Whatever was recorded is over."""
        store = self.world.store
        for key, session in store.data.sessions.items():
            if session.requests and not store.lossy:
                raise Breach("liveness", f"{key} has {session.requests} in flight")
            owners = [r for r in self.slots if not r.dead and key in r.lives]
            if len(owners) > 1:
                raise Breach("law 4", f"{key} has {len(owners)} owners")

    def _check_listeners(self) -> None:
        for listener in self.clients.listeners:
            session, seen = self.world.store.data.sessions[listener.key], listener.seen
            log = session.logs.get(seen.name) if seen is not None else None
            told = listener.connection is not None and listener.connection.gap
            if log is not None and seen is not None and not log.finished and seen.seq < log.seq and not told:
                raise Breach("law 3", f"{seen} is not followed to {log.seq}")


def play(seed: int, plan: list[Step], bug: Bug | None = None) -> Any:
    cluster = Cluster(seed, bug)
    try:
        cluster.run(plan)
    except Breach as breach:
        breach.add_note("\n".join(cluster.world.trace))
        raise
    return cluster
