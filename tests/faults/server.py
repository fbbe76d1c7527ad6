"""The MCP servers behind the gateway in these tests: tools that take their time, report, and ask; and what is counted.

A tool's `key` names the request that called it; each execution is counted under it, and every text that comes of it
carries it, so that whatever goes astray is found by its name. The key begins with whose request it is: `victim.3`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from actors.ports import TransportEvent
from actors.protocol.table import BackendSpec
from tests.faults.lasting import LastingLink, Memory
from tests.support.mcp_backend import Backend, Kind, Request, Upstream
from tests.support.scripted import ScriptedTransport

TICK = 0.2
"""Seconds between two things that a tool does."""

PATIENCE = 100.0
"""Seconds that a tool waits for an answer."""

FORM = {"message": "go on?", "requestedSchema": {"type": "object", "properties": {"yes": {"type": "boolean"}}}}


def key_of(request: Request) -> str:
    """The name of the request that called a tool; empty for what is not a call of a tool."""
    arguments = request.params.get("arguments") or {}
    return str(arguments.get("key", ""))


class Server(Backend):
    """`fault` is offered each request first; True takes it away from the tools."""

    def __init__(self, name: str, nursery: trio.Nursery, kind: Kind, people: tuple[str, ...]) -> None:
        resources = tuple(f"test:///{who}" for who in people)
        super().__init__(name, tools=(*TOOLS,), resources=resources, kind=kind)
        self.executions: Counter[str] = Counter()
        self.served: dict[Upstream, set[str]] = {}
        self.fault: Callable[[Request], bool] = lambda request: False
        self.memory: Memory | None = None
        """There is one: it keeps what it says in the course of requests."""
        self._nursery = nursery

    def connect(
        self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False
    ) -> ScriptedTransport:
        if self.memory is None:
            return super().connect(spec, emit, modern)
        self.upstreams.append(LastingLink(self, self.memory, spec, emit))
        return self.upstream.transport

    def came(self, request: Request) -> None:
        key = key_of(request)
        if key:
            self.executions[key] += 1
            self.served.setdefault(request.upstream, set()).add(key.split(".")[0])
        if self.fault(request):
            self.requests.append(request)
        elif key:
            self.requests.append(request)
            self._nursery.start_soon(self._run, request)
        else:
            super().came(request)
            if request.method == "resources/subscribe":
                self._nursery.start_soon(self._update, request)

    async def _run(self, request: Request) -> None:
        tool = TOOLS[request.params["name"].split("__")[-1]]
        text = await tool(request)
        if not request.cancelled.is_set():
            request.text(f"{self.name} {text} {key_of(request)}")

    async def _update(self, request: Request) -> None:
        """A resource changes three times."""
        for _ in range(3):
            await trio.sleep(TICK)
            request.upstream.notify("notifications/resources/updated", {"uri": request.params["uri"]})


Tool = Callable[[Request], Awaitable[str]]


async def quick(request: Request) -> str:
    """Answers at once."""
    await trio.lowlevel.checkpoint()
    return "quick"


async def wait(request: Request) -> str:
    """Says nothing for a while."""
    await trio.sleep(10 * TICK)
    return "wait"


async def stream(request: Request) -> str:
    """Reports and logs."""
    for step in range(1, 4):
        await trio.sleep(TICK)
        request.progress(step, message=key_of(request))
        request.log({"key": key_of(request), "step": step})
    await trio.sleep(TICK)
    return "stream"


async def ask(request: Request) -> str:
    """Asks the user, then the model."""
    said = []
    for method, params in QUESTIONS:
        await trio.sleep(TICK)
        outcome: dict[str, Any] = {}
        with trio.move_on_after(PATIENCE):
            outcome = await request.ask(method, {**params, "_meta": {"key": key_of(request)}}).outcome()
        said.append("answered" if "result" in outcome else "refused")
    await trio.sleep(TICK)
    return "ask " + ",".join(said)


QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("elicitation/create", FORM),
    (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "well?"}}], "maxTokens": 10},
    ),
)

TOOLS: dict[str, Tool] = {"quick": quick, "wait": wait, "stream": stream, "ask": ask}
