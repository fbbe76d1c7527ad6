"""Clients, servers and accidents at random: every request has one answer, and in the end nothing is left."""

import random
from contextlib import suppress

import pytest
import trio

from actors.runtime import Ref
from actors.sessions.router import session_key
from actors.sessions.session import SessionActor
from actors.upstreams.legacy import LegacyUpstream
from tests.support.door_client import Client, Pending, RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request, tool
from tests.support.repeatable import run

MAY = {"sampling": {}, "roots": {"listChanged": True}}
STEPS = 150


class Play:
    """One random run. `calls` are all requests, whatever became of them."""

    def __init__(self, gateway: Gateway, seed: int) -> None:
        self.gateway = gateway
        self.random = random.Random(seed)
        self.clients: list[tuple[Client, str]] = []
        self.calls: list[tuple[Client, Pending]] = []
        self.done: set[int] = set()
        self.cut: set[int] = set()
        """Requests whose connection broke: they have one answer at most."""

    @property
    def backends(self) -> list[Backend]:
        return list(self.gateway.backends.values())

    def open_requests(self) -> list[Request]:
        found = [r for b in self.backends for r in b.requests if r.method == "tools/call" and id(r) not in self.done]
        return [r for r in found if r.params["name"] == "work" and not r.upstream.transport.closed]

    async def step(self) -> None:
        await self.random.choice(
            [
                *[self.call] * 6,
                *[self.serve] * 8,
                self.list,
                self.list,
                self.subscribe,
                self.cancel,
                self.listen,
                self.level,
                self.accident,
                self.accident,
                self.drop,
                self.renew,
            ]
        )()
        if self.random.random() < 0.7:
            await trio.sleep(self.random.choice((0, 0, 0.01, 0.3, 2, 12)))

    def one(self) -> tuple[Client, str]:
        return self.random.choice(self.clients)

    def begin(self, client: Client, method: str, params: dict | None = None, **more: object) -> None:
        self.calls.append((client, client.begin(method, params, **more)))

    async def call(self) -> None:
        client, prefix = self.one()
        backend = self.random.choice(self.backends).name if not client.endpoint else client.endpoint
        name = self.random.choice(("work", "work", "echo", "nothing"))
        full = f"{backend}__{name}" if prefix else name
        self.begin(client, "tools/call", {"name": full}, progress=self.random.choice((None, len(self.calls))))

    async def list(self) -> None:
        client, _ = self.one()
        self.begin(client, self.random.choice(("tools/list", "prompts/list", "resources/list")))

    async def subscribe(self) -> None:
        client, prefix = self.one()
        backend = self.random.choice(self.backends).name
        uri = f"{backend}+test:///a" if prefix else "test:///a"
        self.begin(client, f"resources/{self.random.choice(('subscribe', 'unsubscribe'))}", {"uri": uri})

    async def level(self) -> None:
        self.begin(self.one()[0], "logging/setLevel", {"level": self.random.choice(("debug", "error"))})

    async def cancel(self) -> None:
        client, pending = self.random.choice(self.calls) if self.calls else (None, None)
        if client is not None and pending is not None:
            client.post({"method": "notifications/cancelled", "params": {"requestId": pending.id}})

    async def listen(self) -> None:
        stream = self.one()[0].listen()
        await self.gateway.settle()
        if self.random.random() < 0.5:
            stream.drop()

    async def drop(self) -> None:
        if self.calls:
            _, pending = self.random.choice(self.calls)
            self.cut.add(id(pending))
            pending.drop()

    async def renew(self) -> None:
        """A session ends, or its actor crashes: both with whatever is in flight."""
        client, _ = self.one()
        if self.random.random() < 0.5:
            await client.delete()
        else:
            alive = self.gateway.actors.sessions.table.get(session_key(client.session or ""))
            if alive is None:
                return
            self.cut |= {id(pending) for owner, pending in self.calls if owner is client and not pending.done}
            break_actor(alive.ref)
            await self.gateway.settle()
        if await client.post({"id": "alive?", "method": "ping"}).head() == 404:
            client.session = None
            with suppress(RpcError):  # its backend is down: what it says without a session is refused
                await client.initialize()

    async def serve(self) -> None:
        requests = self.open_requests()
        if not requests:
            return
        request = self.random.choice(requests)
        match self.random.randrange(8):
            case 0:
                request.progress(self.random.random())
            case 1:
                request.log("words")
            case 2:
                request.ask(self.random.choice(("sampling/createMessage", "roots/list", "nonsense")), {"messages": []})
            case 3:
                self.done.add(id(request))
                request.error(-5, "no")
            case 4:
                self.done.add(id(request))
                request.fail()
            case 5:
                self.done.add(id(request))
                request.text("once")
                request.text("twice")
            case _:
                self.done.add(id(request))
                request.text("done")

    async def accident(self) -> None:
        backend = self.random.choice(self.backends)
        upstream = self.random.choice(backend.open) if backend.open else None
        match self.random.randrange(10):
            case 0:
                backend.down = not backend.down
            case 1:
                backend.silent = not backend.silent
            case 2:
                backend.mute ^= {self.random.choice(("tools/list", "initialize", "resources/subscribe"))}
            case 3 if upstream:
                upstream.lose_session()
            case 4 if upstream:
                upstream.garbage()
            case 5:
                backend.lists["tools/list"] = [tool("echo"), tool("work"), tool(f"t{self.random.randrange(3)}")]
                for one in backend.open:
                    one.notify("notifications/tools/list_changed")
            case 6:
                self.crash()
            case _ if upstream:
                upstream.die()

    def crash(self) -> None:
        registry = self.gateway.system.registry
        upstreams = [ref for ref in registry if isinstance(ref.cell.actor, LegacyUpstream)]
        if upstreams:
            break_actor(self.random.choice(upstreams))

    def heal(self) -> None:
        for backend in self.backends:
            backend.down = backend.silent = False
            backend.mute.clear()


def break_actor(ref: Ref) -> None:
    """It crashes with its next message."""
    ref.cell.actor.receive = None  # type: ignore[union-attr, method-assign]
    ref.reply("anything")


def leftovers(gateway: Gateway) -> list[str]:
    """What sessions and upstream connections still remember."""
    found = []
    for ref in gateway.system.registry:
        actor = ref.cell.actor
        if isinstance(actor, (SessionActor, LegacyUpstream)):
            found += [f"{actor!r} {name}: {n}" for name, n in actor.statistics().items() if n]
    return found


async def play(seed: int) -> None:
    backends = [
        Backend("alpha", tools=("echo", "work"), held={"work"}, timeout=60.0),
        Backend("beta", tools=("echo", "work"), held={"work"}, kind="http"),
        Backend("gamma", tools=("echo", "work"), held={"work"}, sharing="shared"),
    ]
    async with open_gateway(*backends, link_idle=50.0, child_processes=6, jitter=0.5) as gateway:
        before = gateway.left()
        run = Play(gateway, seed)
        for endpoint in ("", "", "", "alpha", "beta", "gamma"):
            client = await gateway.connect(endpoint, capabilities=MAY if run.random.random() < 0.5 else {})
            run.clients.append((client, "" if endpoint else "x"))
        for _ in range(STEPS):
            await run.step()
        run.heal()
        await trio.sleep(4000)  # beyond every deadline
        for _, pending in run.calls:
            answers = [m for m in pending.messages if "method" not in m]
            assert len(answers) == 1 or (not answers and id(pending) in run.cut), (pending, pending.messages)
        assert leftovers(gateway) == []
        assert gateway.left()["requests"] == 0
        gateway.crashes.clear()
        await again(run)
        await trio.sleep(100)
        assert gateway.left() == before
        assert all(not backend.open for backend in backends)


async def again(run: Play) -> None:
    """The sessions end, and others find everything in order."""
    for client, _ in run.clients:
        await client.delete()
    await run.gateway.settle()
    for client, prefix in run.clients:
        fresh = await run.gateway.connect(client.endpoint)
        for backend in run.backends if prefix else ():
            assert await fresh.tool(f"{backend.name}__echo") == f"{backend.name}: echo"
        await fresh.delete()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_request_has_one_answer_and_nothing_is_left(seed):
    run(play, seed, seed=seed)
