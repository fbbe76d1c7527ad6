"""Every wait of docs/guarantees.md, "Deadlines", in every place where it can come about: clients of both eras, on every
route, before servers of both eras, over both kinds of transport.

`ROWS` has the document's rows, by their first column. A row is proved in every cell, except in those for which it says
why it can't come about there; what one row needs of others is in `Scene`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from actors.runtime import System
from tests.support.door_client import Client, Pending
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request, Upstream
from tests.support.modern_backend import ModernBackend, needs
from tests.support.modern_client import ModernClient

ROOT = Path(__file__).resolve().parents[2]
MAY_ALL = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
PAGE = {"mode": "url", "message": "sign in", "url": "https://a.test/"}
ACCEPTED = {"action": "accept", "content": {}}
ACK = "notifications/subscriptions/acknowledged"
MINUTE = 60.0
HOUR = 3600.0
SOON = 0.1
"""What comes at once may take so long."""

Era = Literal["sessions", "none"]


class Cell(NamedTuple):
    """Who asks whom, and how. Of a client and of a server: whether it has sessions."""

    client: Era
    route: Literal["transparent", "all", "group"]
    server: Era
    transport: Literal["stdio", "http"]

    def __str__(self) -> str:
        return "-".join(self)

    @property
    def merged(self) -> bool:
        return self.route != "transparent"

    @property
    def bridged(self) -> bool:
        """Whether a pool holds the connection."""
        return self.client == "none" and self.server == "sessions"


ERAS: tuple[Era, ...] = ("sessions", "none")
CELLS = tuple(Cell(*c) for c in product(ERAS, ("transparent", "all", "group"), ERAS, ("stdio", "http")))  # type: ignore[arg-type]


class Scene:
    """A gateway before the server `alpha`, which the row is about, and `beta`, which does what it should."""

    def __init__(self, cell: Cell, gateway: Gateway, alpha: Backend) -> None:
        self.cell, self.gateway, self.alpha = cell, gateway, alpha
        self.endpoint = {"transparent": "alpha", "all": "", "group": "team"}[cell.route]

    async def client(self, **capabilities: Any) -> Client | ModernClient:
        if self.cell.client == "sessions":
            return await self.gateway.connect(self.endpoint, capabilities=capabilities)
        door, nursery = self.gateway.actors.door, self.gateway.nursery
        return ModernClient(door, nursery, self.endpoint, capabilities=capabilities)

    def name(self, name: str) -> str:
        return f"alpha__{name}" if self.cell.merged else name

    @property
    def probe(self) -> float:
        """How long a client without sessions waits for a server to say that it has none either."""
        if self.cell.client == "sessions":
            return 0
        return {"stdio": 30, "http": 5}[self.cell.transport]

    def uri(self, uri: str) -> str:
        return f"alpha+{uri}" if self.cell.merged else uri

    async def ready(self, **capabilities: Any) -> Client | ModernClient:
        """A client that has called the server before."""
        client = await self.client(**capabilities)
        await self.call(client, "echo").result()
        return client

    def call(self, client: Client | ModernClient, tool: str, **more: Any) -> Pending:
        return client.begin("tools/call", {"name": self.name(tool), "arguments": {}}, **more)

    async def asking(self) -> Client | ModernClient:
        """A client that has not heard of the server yet."""
        if self.cell.client == "sessions" and not self.cell.merged:
            return self.gateway.client(self.endpoint)
        return await self.client()

    def first(self, client: Client | ModernClient) -> Pending:
        """The first request that needs the server, and no list of it."""
        if isinstance(client, Client) and not client.session:
            return client.begin(
                "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client.info}
            )
        return client.begin("resources/read", {"uri": self.uri("test:///a")})

    async def closed(self, upstream: Upstream) -> None:
        with trio.fail_after(HOUR):
            await upstream.transport.wait_closed()

    async def told_to_cancel(self, request: Request) -> None:
        """By a notification, or by the end of its stream."""
        await self.gateway.settle()
        assert request.cancelled.is_set() or request.id in request.upstream.transport.forgotten


@dataclass(frozen=True)
class Proof:
    """`not_in` says why a wait can't come about in a cell; `limits` and `server` are what the gateway and the server
    are made with."""

    prove: Callable[[Scene], Awaitable[None]]
    not_in: Callable[[Cell], str | None] = lambda cell: None
    limits: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def stall(system: System) -> Iterator[None]:
    """No actor gets a turn inside."""
    held: list[Any] = []
    schedule = system.dispatcher.schedule
    system.dispatcher.schedule = held.append  # type: ignore[method-assign, assignment]
    yield
    system.dispatcher.schedule = schedule  # type: ignore[method-assign]
    for runnable in held:
        schedule(runnable)


class Stopwatch:
    """Time since it was made."""

    def __init__(self) -> None:
        self._began = trio.current_time()

    def shows(self, seconds: float, early: float = SOON, late: float = SOON) -> None:
        passed = trio.current_time() - self._began
        assert seconds - early <= passed <= seconds + late, f"{passed} s instead of {seconds} s"


# The rows ------------------------------------------------------------------------------------------------------------


async def mailbox(scene: Scene) -> None:
    client = await scene.ready()
    await scene.gateway.settle()
    with stall(scene.gateway.system):
        watch = Stopwatch()
        call = scene.call(client, "echo")
        assert await call.head() == 503
        watch.shows(2)
    await trio.sleep(1)
    assert scene.alpha.methods.count("tools/call") == 1


async def stream(scene: Scene) -> None:
    client = await scene.ready()
    watch = Stopwatch()
    call = scene.call(client, "held")
    await call.head()
    assert call.streaming
    watch.shows(0.25 if scene.cell.client == "sessions" else 15)


async def request(scene: Scene) -> None:
    client = await scene.ready()
    await overdue(scene, client, 300)


async def request_with_a_timeout(scene: Scene) -> None:
    await overdue(scene, await scene.ready(), 5)


async def overdue(scene: Scene, client: Client | ModernClient, seconds: float) -> None:
    watch = Stopwatch()
    call = scene.call(client, "held")
    error = await call.error()
    watch.shows(seconds)
    assert error.code == -32603
    assert (error.data["reason"], error.data["executed"]) == ("timeout", "unknown")
    [asked] = [r for r in scene.alpha.asked_for("tools/call") if r.params["name"] == "held"]
    await scene.told_to_cancel(asked)


async def request_of_any_kind(scene: Scene) -> None:
    kinds = {
        "resources/read": {"uri": scene.uri("test:///a")},
        "prompts/get": {"name": scene.name("hello")},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": scene.name("hello")},
            "argument": {"name": "a", "value": "b"},
        },
    }
    if not scene.cell.merged:
        kinds["tools/list"] = {}
        # What nobody knows is not passed on to a server of the other era.
        kinds |= {"x/unknown": {}} if scene.cell.client == scene.cell.server else {}
    client = await scene.ready()
    scene.alpha.mute |= set(kinds)
    for method, params in kinds.items():
        watch = Stopwatch()
        error = await client.begin(method, params).error()
        watch.shows(5)
        assert (method, error.code, error.data["reason"]) == (method, -32603, "timeout")


async def request_to_a_server_that_starts(scene: Scene) -> None:
    """The time until it is there counts."""
    client = await scene.asking()
    scene.alpha.silent = True
    watch = Stopwatch()
    error = await client.begin("resources/read", {"uri": scene.uri("test:///a")}).error()
    watch.shows(5)
    assert (error.code, error.data["reason"]) == (-32603, "timeout")
    # Whether a call of a client without sessions was sent, its connection alone knows.
    assert error.data["executed"] in (("no",) if scene.cell.client == "sessions" else ("no", "unknown"))


async def request_with_progress(scene: Scene) -> None:
    client = await scene.ready()
    watch = Stopwatch()
    call = scene.call(client, "held", progress="p")
    await scene.alpha.next()
    asked = await scene.alpha.next()
    scene.gateway.nursery.start_soon(reporting, asked)
    await trio.sleep(HOUR - MINUTE)
    assert not call.done
    error = await call.error()
    watch.shows(HOUR)
    assert error.data["reason"] == "timeout"
    await scene.told_to_cancel(asked)


async def reporting(request: Request) -> None:
    """A server that says every four minutes that it is getting on."""
    for progress in range(1, 16):
        await trio.sleep(4 * MINUTE)
        request.progress(progress)


async def merged_list(scene: Scene) -> None:
    scene.alpha.mute |= {"tools/list"}
    client = await scene.client()
    events = client.listen() if isinstance(client, Client) else client.listen(tools=True)
    await scene.gateway.settle()
    for seconds in (3, 0):
        watch = Stopwatch()
        assert [tool["name"] for tool in (await client.call("tools/list"))["tools"]] == ["beta__echo"]
        watch.shows(seconds, early=0.2)
    late = await scene.alpha.next("tools/list")
    late.result({"tools": scene.alpha.lists["tools/list"]})
    await events.next("notifications/tools/list_changed")


async def lookup(scene: Scene) -> None:
    scene.alpha.mute |= {"tools/list"}
    client = await scene.client()
    watch = Stopwatch()
    error = await scene.call(client, "echo").error()
    watch.shows(10)
    assert (error.code, error.data["backend"], error.data["executed"]) == (-32603, "alpha", "no")


async def subscription(scene: Scene) -> None:
    scene.alpha.mute |= {"subscriptions/listen", "resources/subscribe"}
    client = await scene.ready()
    assert isinstance(client, ModernClient)
    watch = Stopwatch()
    pending = client.listen(scene.uri("test:///a"), tools=True)
    honoured = (await pending.next(ACK))["params"]["notifications"]
    watch.shows(10)
    assert "resourceSubscriptions" not in honoured or honoured["resourceSubscriptions"] == []


async def connection(scene: Scene) -> None:
    scene.alpha.silent = True
    watch = Stopwatch()
    error = await scene.first(await scene.asking()).error()
    watch.shows(30 + scene.probe)
    assert (error.code, error.data["executed"]) == (-32603, "no")


async def connection_again(scene: Scene) -> None:
    """What it lists and which era it speaks is known."""
    client = await scene.ready()
    scene.alpha.silent = True
    for upstream in scene.alpha.open:
        upstream.die()
    await scene.gateway.settle()
    watch = Stopwatch()
    error = await scene.call(client, "echo").error()
    # One that had no sessions may have been replaced by one that has.
    watch.shows(30 + (scene.probe if scene.cell.server == "none" else 0))
    assert (error.code, error.data["executed"]) == (-32603, "no")


async def get_stream(scene: Scene) -> None:
    client = await scene.ready()
    scene.alpha.holds_stream = True
    for upstream in scene.alpha.open:
        upstream.die()
    await scene.gateway.settle()
    watch = Stopwatch()
    await scene.call(client, "echo").result()
    watch.shows(1)


async def discovery(scene: Scene) -> None:
    scene.alpha.mute |= {"server/discover"}
    watch = Stopwatch()
    call = scene.first(await scene.asking())
    if scene.cell.server == "sessions":
        await call.result()
        watch.shows(scene.probe)
    else:
        error = await call.error()
        watch.shows(30 + scene.probe)
        assert (error.code, error.data["executed"]) == (-32603, "no")


async def discovery_begun(scene: Scene) -> None:
    """A process that has written something is not about to start."""
    scene.alpha.mute |= {"server/discover"}
    call = scene.first(await scene.asking())
    await scene.alpha.next("server/discover")
    await trio.sleep(20)
    watch = Stopwatch()
    scene.alpha.upstream.notify("notifications/message", {"level": "info", "data": "ready"})
    await call.result()
    watch.shows(5)


async def upstream_subscription(scene: Scene) -> None:
    scene.alpha.mute |= {"subscriptions/listen"}
    client = await scene.ready()
    watch = Stopwatch()
    if isinstance(client, ModernClient):
        pending = client.listen(scene.uri("test:///a"))
        await pending.next(ACK)
        watch.shows(10)
        await scene.alpha.next("subscriptions/listen")
        await scene.alpha.next("subscriptions/listen")
        watch.shows(10.25)
    else:
        error = await client.begin("resources/subscribe", {"uri": scene.uri("test:///a")}).error()
        watch.shows(10)
        assert error.code == -32603


async def input_rounds(scene: Scene) -> None:
    client = await scene.ready(**MAY_ALL)
    assert isinstance(client, Client)
    call = scene.call(client, "held")
    await scene.alpha.next()
    for round in range(10):
        needs(await scene.alpha.next(), str(round), form={"method": "elicitation/create", "params": FORM})
        await client.respond(await call.next("elicitation/create"), ACCEPTED)
    needs(await scene.alpha.next(), "11", form={"method": "elicitation/create", "params": FORM})
    error = await call.error()
    assert (error.code, error.data["reason"]) == (-32603, "input_rounds")


async def input_page(scene: Scene) -> None:
    client = await scene.ready(**MAY_ALL)
    assert isinstance(client, Client)
    call = scene.call(client, "held")
    scene.alpha.results["tools/call"] = lambda request: {
        "resultType": "input_required",
        "inputRequests": {"page": {"method": "elicitation/create", "params": PAGE}},
    }
    await scene.alpha.next()
    needs(await scene.alpha.next(), page={"method": "elicitation/create", "params": PAGE})
    await client.respond(await call.next("elicitation/create"), {"action": "accept"})
    watch = Stopwatch()
    error = await call.error()
    watch.shows(5 * MINUTE, early=12)
    assert (error.code, error.data["reason"]) == (-32603, "input_rounds")


async def question_without_a_stream(scene: Scene) -> None:
    await scene.ready(**MAY_ALL)
    watch = Stopwatch()
    outcome = await scene.alpha.upstream.ask("roots/list", {}).outcome()
    watch.shows(5)
    assert outcome["error"]["code"] == -32603


async def question(scene: Scene) -> None:
    """Outside of a call, where there is such a thing: the call's own deadline does not end it."""
    client = await scene.ready(**MAY_ALL)
    assert isinstance(client, Client)
    events = client.listen()
    await scene.gateway.settle()
    asked = scene.alpha.upstream.ask("roots/list", {})
    said = await events.next("roots/list")
    watch = Stopwatch()
    assert (await asked.outcome())["error"]["code"] == -32603
    watch.shows(300)
    assert (await events.next("notifications/cancelled"))["params"]["requestId"] == said["id"]


async def question_of_a_call(scene: Scene) -> None:
    client = await scene.ready(**MAY_ALL)
    assert isinstance(client, Client)
    call = scene.call(client, "held")
    await scene.alpha.next()
    asked = await scene.alpha.next()
    answer = None
    if scene.cell.server == "none":
        needs(asked, form={"method": "elicitation/create", "params": FORM})
    else:
        answer = asked.ask("elicitation/create", FORM)
    said = await call.next("elicitation/create")
    error = await call.error()
    assert error.data["reason"] == "timeout"
    assert call.seen("notifications/cancelled")[0]["params"]["requestId"] == said["id"]
    if answer is not None:
        assert "error" in await answer.outcome()


async def suspended(scene: Scene) -> None:
    client, first, asked, answer = await suspend(scene)
    watch = Stopwatch()
    scene.gateway.nursery.start_soon(reporting, asked)
    await asked.cancelled.wait()
    watch.shows(600, late=1)
    assert (await answer.outcome())["result"] == {"action": "cancel"}
    retry = {
        "name": scene.name("held"),
        "arguments": {},
        "inputResponses": dict.fromkeys(first["inputRequests"], ACCEPTED),
        "requestState": first["requestState"],
    }
    assert (await client.begin("tools/call", retry).error()).code == -32602


async def suspend(scene: Scene) -> tuple[ModernClient, dict[str, Any], Request, Any]:
    """A call that waits for its client."""
    client = await scene.ready(**MAY_ALL)
    assert isinstance(client, ModernClient)
    call = scene.call(client, "held", progress="p")
    await scene.alpha.next()
    asked = await scene.alpha.next()
    answer = asked.ask("elicitation/create", FORM)
    return client, await call.result(), asked, answer


async def ping(scene: Scene) -> None:
    client = await scene.ready(**MAY_ALL)
    call = scene.call(client, "held")
    await scene.alpha.next()
    asked = await scene.alpha.next()
    scene.alpha.mute |= {"ping"}
    call.drop()
    await asked.cancelled.wait()
    watch = Stopwatch()
    await scene.closed(asked.upstream)
    watch.shows(5)


async def ping_of_session(scene: Scene) -> None:
    client = await scene.ready(**MAY_ALL)
    assert isinstance(client, Client)
    call = scene.call(client, "held")
    await scene.alpha.next()
    await scene.alpha.next()
    scene.alpha.mute |= {"ping"}
    watch = Stopwatch()
    await client.cancel(call)
    scene.call(client, "held")
    await scene.alpha.next()
    watch.shows(5)


async def unused(scene: Scene) -> None:
    await scene.ready()
    watch = Stopwatch()
    await scene.closed(scene.alpha.upstream)
    watch.shows(15 * MINUTE, late=2)


async def finished_log(scene: Scene) -> None:
    """One was written whole, of the other the connection broke before its end."""
    client = await scene.ready()
    assert isinstance(client, Client)
    await scene.alpha.next()
    whole, broken = scene.call(client, "held"), scene.call(client, "held")
    asked = [await scene.alpha.next() for _ in range(2)]
    for call in (whole, broken):
        await call.head()
        await scene.gateway.settle()
    broken.drop()
    await trio.sleep(1)
    for one in asked:
        one.text("done")
    await whole.result()
    await scene.gateway.settle()
    begun = trio.current_time()
    ids = [call.events[0].id for call in (whole, broken)]
    for seconds, there in ((55, (True, True)), (65, (False, True)), (295, (False, True)), (305, (False, False))):
        while trio.current_time() < begun + seconds:
            await trio.sleep(min(50, begun + seconds - trio.current_time()))
            await client.call("ping")
        for id, kept in zip(ids, there, strict=True):
            back = client.listen(id)
            await back.end()
            said = [m for m in back.messages if "result" in m]
            gaps = [m for m in back.messages if "error" in m]
            assert (bool(said), bool(gaps)) == (kept, not kept), (seconds, back.messages)


async def idle(scene: Scene) -> None:
    client = await scene.ready()
    own = scene.alpha.upstream
    sessions = scene.gateway.actors.sessions.table
    await trio.sleep(59)
    assert len(sessions) == 1
    await trio.sleep(3)
    assert len(sessions) == (1 if scene.cell.transport == "stdio" else 0)

    def ended() -> bool:
        """Whether the server's session was, and not only a connection to it."""
        closed = [
            upstream.transport
            for upstream in scene.alpha.upstreams
            if upstream.transport.closed and not upstream.transport.let_go_of
        ]
        return any(transport.session == own.transport.session for transport in closed)

    await trio.sleep(30 * MINUTE - 62 - 5)
    assert not ended() or scene.cell.server == "none"
    await trio.sleep(10)
    assert not sessions
    await trio.sleep(25)  # its servers hear of it when it is looked for, or when its client comes back
    assert ended()
    assert await client.begin("tools/list").head() == 404


async def drain(scene: Scene) -> None:
    client = await scene.ready()
    call = scene.call(client, "held")
    await scene.alpha.next()
    await scene.alpha.next()
    watch = Stopwatch()
    await scene.gateway.system.drain(trio.current_time() + 8)
    watch.shows(8, early=1, late=0)
    error = await call.error()
    reason = "shutdown" if scene.cell.client == "sessions" else "draining"
    assert (error.code, error.data["reason"], error.data["executed"]) == (-32603, reason, "unknown")


# Where a wait can't come about ---------------------------------------------------------------------------------------


def needs_session(cell: Cell) -> str | None:
    return "the client has no session" if cell.client == "none" else None


def needs_no_session(cell: Cell) -> str | None:
    return "the client has a session" if cell.client == "sessions" else None


def needs_a_first_request(cell: Cell) -> str | None:
    return "initialize waits for the connection" if cell.client == "sessions" and not cell.merged else None


def needs_merging(cell: Cell) -> str | None:
    return "what one server lists and names is its own" if not cell.merged else None


def needs_pool(cell: Cell) -> str | None:
    return None if cell.bridged else "only a client without sessions before a server with them has a broker"


def needs_pipe_of_pool(cell: Cell) -> str | None:
    return "over HTTP a request is cancelled alone" if cell.transport == "http" else needs_pool(cell)


def needs_pipe_of_session(cell: Cell) -> str | None:
    return "over HTTP a request is cancelled alone" if cell.transport == "http" else needs_server_with_sessions(cell)


def needs_server_with_sessions(cell: Cell) -> str | None:
    return "a server without sessions asks in its answers alone" if cell.server == "none" else needs_session(cell)


def needs_get_stream(cell: Cell) -> str | None:
    if cell.transport == "stdio":
        return "a process has one stream for everything"
    return "a server without sessions has no GET stream" if cell.server == "none" else None


def needs_doubt(cell: Cell) -> str | None:
    if cell.client == "sessions" and cell.server == "sessions":
        return "initialize comes first, and is answered"
    return None


def needs_server_without_sessions(cell: Cell) -> str | None:
    return "a server with sessions acknowledges no subscription" if cell.server == "sessions" else None


def needs_rounds(cell: Cell) -> str | None:
    if cell.server == "sessions":
        return "a server with sessions asks, and does not answer that it needs input"
    return "such a client gets the question as its answer" if cell.client == "none" else None


@dataclass(frozen=True)
class Row:
    """`at_most` are the times that the document names, in seconds; `by` what proves them, here or elsewhere."""

    at_most: tuple[float, ...]
    by: tuple[Proof | str, ...]


POOLS = "tests/actors/test_pools.py::"
ROWS: Mapping[str, Row] = {
    "a client's message in a mailbox": Row((2,), (Proof(mailbox),)),
    "an answer, before it becomes a stream": Row((0.25, 15), (Proof(stream),)),
    "a request": Row(
        (300, HOUR),
        (
            Proof(request),
            Proof(request_with_a_timeout, server={"timeout": 5.0}),
            Proof(request_of_any_kind, server={"timeout": 5.0}),
            Proof(request_to_a_server_that_starts, needs_a_first_request, server={"timeout": 5.0}),
            Proof(request_with_progress),
        ),
    ),
    "a merged list, for one server": Row((3, 60), (Proof(merged_list, needs_merging),)),
    "a call, for the lists on which its name may be": Row((10, 60), (Proof(lookup, needs_merging),)),
    "the acknowledgement of a subscription, for one server": Row((10, 60), (Proof(subscription, needs_no_session),)),
    "a connection to a server": Row((30,), (Proof(connection), Proof(connection_again))),
    "the GET stream of a legacy server, before calls are sent to it": Row((1,), (Proof(get_stream, needs_get_stream),)),
    "the answer to `server/discover`": Row(
        (5, 30, 30), (Proof(discovery, needs_doubt), Proof(discovery_begun, needs_pipe_of_pool))
    ),
    "the acknowledgement of a subscription at a modern server": Row(
        (10,), (Proof(upstream_subscription, needs_server_without_sessions),)
    ),
    "the input that a modern server requires of a legacy client": Row(
        (5 * MINUTE,), (Proof(input_rounds, needs_rounds), Proof(input_page, needs_rounds))
    ),
    "a server request without a stream to carry it": Row(
        (5,), (Proof(question_without_a_stream, needs_server_with_sessions),)
    ),
    "a server request to the client": Row(
        (300,), (Proof(question, needs_server_with_sessions), Proof(question_of_a_call, needs_session))
    ),
    "a suspended call for its client's answers": Row(
        (10 * MINUTE,),
        (
            Proof(suspended, needs_pool),
            POOLS + "test_a_call_that_is_suspended_for_long_gives_way_to_one_that_waits",
            POOLS + "test_beyond_that_the_one_that_is_suspended_longest_gives_way",
        ),
    ),
    "a server over stdio, to answer a ping after such a call, or one whose client left, was cancelled": Row(
        (5,), (Proof(ping, needs_pipe_of_pool),)
    ),
    "the same over the stdio connection of a session": Row((5,), (Proof(ping_of_session, needs_pipe_of_session),)),
    "the connections of a modern client, unused": Row((15 * MINUTE,), (Proof(unused, needs_pool),)),
    "a finished stream's log": Row((5 * MINUTE, 60), (Proof(finished_log, needs_session),)),
    "a session without messages and streams": Row((60, 30 * MINUTE), (Proof(idle, needs_session),)),
    "the drain": Row(
        (8, 6),
        (
            Proof(drain),
            "tests/gateway/test_watchdog.py::test_a_process_that_hangs_is_ended",
        ),
    ),
}
PROOFS = [proof for row in ROWS.values() for proof in row.by if isinstance(proof, Proof)]
CASES = [(proof, cell) for proof in PROOFS for cell in CELLS if proof.not_in(cell) is None]


@pytest.mark.parametrize(("proof", "cell"), CASES, ids=[f"{proof.prove.__name__}-{cell}" for proof, cell in CASES])
async def test_a_wait_ends_by_its_deadline(proof: Proof, cell: Cell, autojump_clock: MockClock) -> None:
    make = Backend if cell.server == "sessions" else ModernBackend
    alpha = make("alpha", tools=("echo", "held"), held={"held"}, kind=cell.transport, **proof.server)
    async with open_gateway(alpha, Backend("beta"), groups={"team": ("alpha", "beta")}, **proof.limits) as gateway:
        await proof.prove(Scene(cell, gateway, alpha))


def documented() -> dict[str, str]:
    """The document's rows: what is waited for, and the rest."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    [section] = re.findall(r"^## Deadlines\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)
    return dict(rows[2:])


def test_every_deadline_of_the_guarantees_is_proved_and_no_other() -> None:
    assert list(documented()) == list(ROWS)


@pytest.mark.parametrize("wait", ROWS)
def test_the_times_of_the_guarantees_are_those_that_are_proved(wait: str) -> None:
    unit = {"s": 1, "min": MINUTE, "h": HOUR}
    times = re.findall(r"([\d.]+) (s|min|h)\b", documented()[wait])
    assert tuple(float(number) * unit[name] for number, name in times) == ROWS[wait].at_most


@pytest.mark.parametrize("elsewhere", [by for row in ROWS.values() for by in row.by if isinstance(by, str)])
def test_what_is_proved_elsewhere_is(elsewhere: str) -> None:
    file, _, name = elsewhere.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
