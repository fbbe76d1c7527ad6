"""Clients of sessions come to any of three replicas, whose mail is lost, late and doubled, whose actors crash, and
which stand still, are killed and end in order, while the store is away or loses what it had: each call is executed at
most once and has one outcome in time, and a stream brings its events once and in order, however often it is resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
import trio

from actors.gate import parse_event_id
from tests.support import harness
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_replica_maker
from tests.support.mcp_backend import Backend, Request
from tests.support.outages import Wire
from tests.support.repeatable import run

CALLS = 100
REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05") * 2
IN_TIME = 60.0
"""Seconds that nothing need be heard of a call whose server answers within a few, whatever happens meanwhile."""
AGAIN = 60
"""Times that a client comes back for a stream."""
PASSING = (429, 502, 503)
Place = tuple[str, int, int]


class Work:
    """One call at the server, which keeps what it says for whoever asks for the rest, if it is a lasting one."""

    def __init__(self, request: Request, *, lasting: bool) -> None:
        self.request = request
        self.words = str(request.params["arguments"]["text"])
        self._transport = request.upstream.transport
        self._lasting = lasting
        self.said: list[dict[str, Any]] = []

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)
        self._deliver(len(self.said))

    def _deliver(self, number: int) -> None:
        if not self._transport.closed:
            cursor = f"{self.words}/{number}" if self._lasting else None
            self._transport.deliver(self.said[number - 1], self.request.id, cursor)

    def go_on(self, transport: Any, cursor: str) -> None:
        """Another connection asks for what comes after this."""
        self._transport = transport
        for number in range(int(cursor.rpartition("/")[2]), len(self.said)):
            self._deliver(number + 1)


class Server(Backend):
    """Counts how often it runs each call, and says something in the course of some."""

    def __init__(self, random: Random, nursery: trio.Nursery, kind: Any, *, lasting: bool) -> None:
        super().__init__("alpha", kind=kind, tools=("echo", "work"), held={"work"})
        self._random, self._nursery, self._lasting = random, nursery, lasting
        self._by_id: dict[Any, Work] = {}
        self.works: dict[str, Work] = {}
        self.executed: Counter[str] = Counter()

    def connect(self, *args: Any, **more: Any) -> Any:
        transport = super().connect(*args, **more)

        def pick_up(id: Any, cursor: str) -> None:
            self._nursery.start_soon(self._go_on, self._by_id[id], transport, cursor)

        transport.pick_up = pick_up  # type: ignore[method-assign]
        return transport

    async def _go_on(self, work: Work, transport: Any, cursor: str) -> None:
        await trio.lowlevel.checkpoint()
        work.go_on(transport, cursor)

    def came(self, request: Request) -> None:
        if request.method == "tools/call":
            work = Work(request, lasting=self._lasting)
            self.executed[work.words] += 1
            if request.params["name"] == "work":
                self._by_id[request.id] = self.works[work.words] = work
                self._nursery.start_soon(self._run, work)
        super().came(request)

    async def _run(self, work: Work) -> None:
        random, token = self._random, work.request.token
        for step in range(random.choice((0, 0, 0, 1, 3, 6))):
            await trio.sleep(random.choice((0.0, 0.05, 0.3, 1.0)))
            if random.random() < 0.6:
                params = {"level": "info", "data": step}
                work.say({"method": "notifications/message", "params": params})
            else:
                work.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
        await trio.sleep(random.choice((0.0, 0.1, 0.5, 2.0)))
        work.say({"id": work.request.id, "result": {"content": [{"type": "text", "text": f"alpha: {work.words}"}]}})


class Soak:
    """One run: the replicas, what happens to them, and what was wrong with what clients saw."""

    def __init__(self, random: Random, nursery: trio.Nursery, server: Server, start: Callable[[], Any]) -> None:
        self.random, self.nursery, self.server, self.start = random, nursery, server, start
        self.replicas: list[Gateway] = []
        self.still: set[int] = set()
        self.crashed: set[Any] = set()
        self.snapshots: list[Any] = []
        self.lossy = False
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def whole(self) -> list[Gateway]:
        return [gateway for gateway in self.replicas if id(gateway) not in self.still]

    def choose(self, client: Client) -> Gateway:
        """Where a balancer leads what the client sends next."""
        gateway = self.random.choice(self.whole)
        client.to(gateway)
        return gateway

    # What happens

    def mail(self) -> None:
        """From here on the letters of one of them fare otherwise."""
        chance, copies = self.random.choice((0.0, 0.0, 0.02, 0.2)), self.random.choice((1, 1, 2))
        delay = self.random.choice((0.0, 0.01, 0.3))

        def post_office(to: str, letter: bytes) -> list[float]:
            return [] if self.random.random() < chance else [delay] * copies

        self._store_of(self.random.choice(self.whole)).replica.post_office = post_office

    @staticmethod
    def _store_of(gateway: Gateway) -> Any:
        return gateway.store

    async def pause(self) -> None:
        gateway = self.random.choice(self.whole)
        if len(self.whole) > 2:
            self.still.add(id(gateway))
            self.nursery.start_soon(self._stand_still, gateway, self.random.choice((1.0, 2.5, 5.0, 12.0)))

    async def _stand_still(self, gateway: Gateway, seconds: float) -> None:
        await gateway.pause()
        await trio.sleep(seconds)
        await gateway.resume()
        await trio.sleep(1)
        self.still.discard(id(gateway))

    async def replace(self) -> None:
        """One of them is killed, or ends in order; another takes its place."""
        if len(self.whole) > 2:
            gateway = self.random.choice(self.whole)
            self.replicas.remove(gateway)
            if self.random.random() < 0.7:
                gateway.kill(at_once=self.random.random() < 0.3)
            else:
                self.nursery.start_soon(self._end, gateway)
            self.replicas.append(await self.start())

    async def _end(self, gateway: Gateway) -> None:
        await gateway.system.drain(8.0)
        gateway.kill(at_once=True)

    async def crash(self) -> None:
        """An actor crashes; of a session's once, for twice would end it."""
        gateway = self.random.choice(self.whole)
        kinds = ("Mailer", "Router", "Sweeper", "Verifier", "LegacyUpstream")
        found: list[tuple[Any, Any]] = [(key, alive.ref) for key, alive in gateway.actors.sessions.table.items()]
        for ref in gateway.system.registry:
            kind = type(ref.cell.actor).__name__
            found += [((id(gateway), kind), ref)] * (kind in kinds)
        found = [(what, ref) for what, ref in found if what not in self.crashed]
        sessions = [(what, ref) for what, ref in found if isinstance(what, str)]
        found = sessions if sessions and self.random.random() < 0.5 else found
        if found:
            what, ref = self.random.choice(found)
            self.crashed.add(what)
            ref.cell.actor.receive = None
            ref.reply("nonsense")

    def lose(self) -> None:
        """The store loses all that came since, or everything."""
        store = self._store_of(self.replicas[0])
        if not self.snapshots or self.random.random() < 0.5:
            self.snapshots.append(store.snapshot())
            return
        self.lossy = True
        store.lose(self.random.choice((self.snapshots[-1], None)))
        for gateway in self.replicas:
            self._store_of(gateway).replica.find_loss()

    # What a client does

    async def call(self, client: Client, words: str) -> None:
        """A call, whose stream it comes back for wherever it is led, up to the outcome."""
        gateway = self.choose(client)
        name = self.random.choice(("work", "work", "work", "echo"))
        pending = first = client.begin("tools/call", {"name": name, "arguments": {"text": words}}, progress=words)
        seen = Seen(self, words)
        for _ in range(AGAIN):
            cut = await self._follow(pending, gateway, seen, first.id)
            if seen.answers or seen.hangs:
                break
            if pending.answer is not None and (pending is first or pending.answer.status not in PASSING):
                seen.refused(pending)
                return
            if seen.place is None:
                lost = cut or gateway not in self.replicas or pending is not first
                self.outcomes["broken"] += 1
                if not lost:
                    self.wrong.append(f"{words} ended without a word: {pending} {pending.messages}")
                return
            await trio.sleep(self.random.choice((0.0, 0.2, 1.0, 2.0)))
            gateway = self.choose(client)
            pending = client.listen("{}:{}-{}".format(*seen.place))
            if self.random.random() < 0.1:
                rival = self.choose(client)
                other = client.listen("{}:{}-{}".format(*seen.place))
                pending, gateway = self.random.choice(((pending, gateway), (other, rival)))
        seen.ended()

    async def _follow(self, pending: Pending, gateway: Gateway, seen: Seen, id: Any) -> bool:
        """One connection, to its end or the outcome; whether its client has broken it off."""
        began, cut, count = trio.current_time(), False, 0
        patience = self.random.choice((0.3, 1.0, 3.0)) if self.random.random() < 0.3 else IN_TIME
        while not seen.answers:
            done = pending.done
            fresh, count = pending.events[count:], len(pending.events)
            for event in fresh:
                seen.event(event.id, event.message)
            if not pending.streaming:
                seen.answers += [m for m in pending.messages if m.get("id") == id and "method" not in m]
            waited = trio.current_time() - began
            if done or waited >= IN_TIME:
                seen.hangs = not done
                break
            if waited > patience or (gateway not in self.whole and waited > 3):
                cut = True
                pending.drop()
            await trio.sleep(0.05)
        await trio.sleep(0.1)
        for event in pending.events[count:]:
            seen.event(event.id, event.message)
        return cut


class Seen:
    """What the client of one call has seen. `place`: the last event id."""

    def __init__(self, soak: Soak, words: str) -> None:
        self._soak = soak
        self._words = words
        self.place: Place | None = None
        self.hangs = False
        self.answers: list[Any] = []
        self._said: list[Any] = []

    def _wrong(self, what: str) -> None:
        self._soak.wrong.append(f"{self._words}: {what}")

    def event(self, id: str | None, message: Any) -> None:
        place = parse_event_id(id) if id is not None else None
        if place is not None:
            before = self.place or (place[0], 0, 0)
            next_one = place[2] == before[2] + 1 or (self._soak.lossy and place[2] > before[2])
            if place[0] != before[0] or place[1] < before[1] or not next_one:
                self._wrong(f"{place} after {self.place}")
            self.place = place
        if message is not None and "method" not in message:
            self.answers.append(message)
        elif message is not None:
            self._said.append(message["params"].get("data", message["params"].get("progress")))

    def refused(self, pending: Pending) -> None:
        assert pending.answer is not None
        status, executed = pending.answer.status, self._soak.server.executed[self._words]
        self._soak.outcomes[str(status)] += 1
        if status not in PASSING and not (self._soak.lossy and status in (400, 404)):
            self._wrong(f"refused with {status} {pending.messages}")
        if executed and self.place is None:
            self._wrong(f"refused with {status}, and executed")

    def ended(self) -> None:
        """It has its outcome."""
        server, executed = self._soak.server, self._soak.server.executed[self._words]
        if len(self.answers) != 1:
            self._wrong(f"{len(self.answers)} outcomes, at {self.place}: {self.answers}")
        elif "result" in self.answers[0]:
            self._soak.outcomes["result"] += 1
            work = server.works.get(self._words)
            said = [m["params"].get("data", m["params"].get("progress")) for m in work.said[:-1]] if work else []
            if executed != 1 or self.answers[0]["result"]["content"][0]["text"] != f"alpha: {self._words}":
                self._wrong(f"executed {executed} times: {self.answers}")
            if self._said != said and not self._soak.lossy:
                self._wrong(f"heard {self._said} of {said}")
        else:
            data = self.answers[0]["error"].get("data") or {}
            self._soak.outcomes[f"{data.get('reason')} {data.get('executed')}"] += 1
            if data.get("executed") not in ("no", "unknown") or (executed and data["executed"] == "no"):
                self._wrong(f"executed {executed} times: {self.answers}")


async def soak(seed: int, trouble: str, kind: str, outcomes: Counter[str], *, lasting: bool) -> None:
    random = Random(f"{seed} {trouble} {kind} {lasting}")
    async with trio.open_nursery() as nursery:
        server = Server(random, nursery, kind, lasting=lasting)
        async with open_replica_maker(server) as start, trio.open_nursery() as running:
            run = Soak(random, running, server, start)
            run.replicas = [await start() for _ in range(3)]
            wire = Wire(list(run.replicas)) if trouble == "store" else None
            clients = [await random.choice(run.replicas).connect("alpha", version=v) for v in REVISIONS]
            async with trio.open_nursery() as calling:
                for number in range(CALLS):
                    calling.start_soon(run.call, random.choice(clients), f"call {number}")
                    await trio.sleep(random.choice((0.0, 0.01, 0.2, 1.0)))
                    await happen(run, trouble, wire)
            running.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    assert not run.wrong, "\n".join(run.wrong)
    assert max(server.executed.values()) == 1
    outcomes += run.outcomes


async def happen(run: Soak, trouble: str, wire: Wire | None) -> None:
    """Something, perhaps."""
    what = run.random.random()
    if what < 0.1:
        run.mail()
    elif what < 0.13:
        await run.pause()
    elif what < 0.19 and wire is None:
        await run.replace()
    elif what < 0.19 and wire is not None:
        wire.break_for(run.random.choice((0.3, 2.0, 4.0)), *run.random.choice(((), (0,), (1,))))
    elif what < 0.4 and trouble == "crashes":
        await run.crash()
    elif what < 0.25 and trouble == "losses":
        run.lose()


@pytest.mark.parametrize(("kind", "lasting"), [("http", True), ("http", False), ("stdio", False)])
@pytest.mark.parametrize("trouble", ["processes", "crashes", "store", "losses"])
@pytest.mark.parametrize("seed", range(2))
def test_each_call_has_one_outcome_and_each_event_comes_once(
    monkeypatch: pytest.MonkeyPatch, seed: int, trouble: str, kind: str, lasting: bool
) -> None:
    outcomes: Counter[str] = Counter()
    if trouble == "crashes":
        monkeypatch.setattr(harness, "_check", lambda crashes: None)  # they are what it is about
    run(partial(soak, seed, trouble, kind, outcomes, lasting=lasting), seed=seed)
    # Of a session that the store has lost for good all further calls are refused, in runs on a busy machine too, where
    # actors take turns otherwise: that may come early, and not to all.
    refused = sum(count for outcome, count in outcomes.items() if outcome == "404" or outcome.endswith(" no"))
    expected = max(CALLS / 10, (CALLS - refused) / 3) if trouble == "losses" else CALLS / 3
    assert outcomes["result"] > expected, outcomes
