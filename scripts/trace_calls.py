"""Counts what one message goes through: calls of functions, files, and hops from one file to another.

    .venv/bin/python scripts/trace_calls.py                        # the table
    .venv/bin/python scripts/trace_calls.py --update               # the same, into ARCHITECTURE.md
    .venv/bin/python scripts/trace_calls.py --show "modern → legacy, aggregate"       # its calls, in order

The tree of actors runs in memory, from the door inward: the edge is left out, servers (over HTTP) are scripted, the
store is in memory, and the clock jumps. Each flow is played twice before it is counted, so that connections, lists and
memos are there. What counts begins with the client's message and ends when the answer is there and nothing is left to
do. No time is measured: the same code gives the same figures on every machine.

- *calls*: functions of `actors/` that were entered, as the interpreter's profiler sees them: a coroutine that goes on
  after a wait, and a generator that is asked for its next value, are entered again. *runtime*: those in
  `actors/runtime`.
- *files*, *hops*: of the calls without `EVERYWHERE`, which every file uses. A hop is a call into another file than that
  of the call before it.
- *there and back*: hops that lead straight back to where the hop before them came from, by pair of files, most first.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import inf
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import trio
from trio._core import _run
from trio.testing import MockClock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from actors.runtime import cell, dispatcher  # noqa: E402 - the tree must be on the path first
from tests.support.door_client import Client  # noqa: E402 - the same
from tests.support.harness import Gateway, open_gateway  # noqa: E402 - the same
from tests.support.mcp_backend import Backend  # noqa: E402 - the same
from tests.support.modern_backend import ModernBackend, needs  # noqa: E402 - the same
from tests.support.modern_client import ModernClient  # noqa: E402 - the same

ACTORS = f"{ROOT / 'actors'}/"
RUNTIME = "runtime/"
EVERYWHERE = (RUNTIME, "protocol/codec.py", "protocol/payload.py", "protocol/errors.py")
DOCUMENT = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- trace: by scripts/trace_calls.py --update -->\n", "<!-- /trace -->\n"
WORST = 3
"""How many pairs of files a row of the table names."""
QUESTION = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": {"type": "object"}}}
CONSENT = {"action": "accept", "content": {}}


class Call(NamedTuple):
    """A function that was entered."""

    file: str
    """Below `actors`."""
    name: str


@dataclass
class Trace:
    """What was called, in order."""

    calls: list[Call] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records what is called inside, in every task of this thread."""
        known: dict[CodeType, Call | None] = {}

        def seen(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event != "call":
                return
            if code not in known:
                ours = code.co_filename.startswith(ACTORS)
                known[code] = Call(code.co_filename.removeprefix(ACTORS), code.co_qualname) if ours else None
            if (call := known[code]) is not None:
                self.calls.append(call)

        sys.setprofile(seen)
        try:
            yield
        finally:
            sys.setprofile(None)

    @property
    def runtime(self) -> int:
        """How many of the calls are in the runtime."""
        return sum(call.file.startswith(RUNTIME) for call in self.calls)

    @property
    def way(self) -> list[str]:
        """The files in the order they were come to, without `EVERYWHERE`; two neighbours are never the same."""
        return [file for file, _ in groupby(call.file for call in self.calls if not call.file.startswith(EVERYWHERE))]

    @property
    def hops(self) -> int:
        """Calls into another file than that of the call before."""
        return len(self.way) - 1

    @property
    def there_and_back(self) -> Counter[tuple[str, str]]:
        """Hops straight back, by pair of files."""
        steps = zip(self.way, self.way[1:], self.way[2:], strict=False)
        return Counter((min(a, b), max(a, b)) for a, b, c in steps if a == c)


# What is played


Recording = Callable[[], AbstractContextManager[None]]


@dataclass
class Scene:
    """One client, and the server `alpha` behind the gateway."""

    gateway: Gateway
    client: Client | ModernClient
    backend: Backend

    def begin(self, tool: str, **more: Any) -> Any:
        """A call of a tool, by its name at this endpoint."""
        name = tool if self.client.endpoint else f"alpha__{tool}"
        return self.client.begin("tools/call", {"name": name, "arguments": {}, **more})


async def plain(scene: Scene, recording: Recording) -> None:
    """A call and its result, as JSON."""
    with recording():
        await scene.begin("echo").result()
        await scene.gateway.settle()


async def elicitation(scene: Scene, recording: Recording) -> None:
    """A call, a question in the course of it, the user's answer, and the result."""
    with recording():
        pending = scene.begin("ask")
        request = await scene.backend.next()
        if isinstance(scene.backend, ModernBackend):
            needs(request, "state", q=QUESTION)
        else:
            request.ask(QUESTION["method"], QUESTION["params"])
        if isinstance(scene.client, ModernClient):
            result = await pending.result()
            answers = dict.fromkeys(result["inputRequests"], CONSENT)
            pending = scene.begin("ask", requestState=result["requestState"], inputResponses=answers)
        else:
            await scene.client.respond(await pending.next(QUESTION["method"]), CONSENT)
        if isinstance(scene.backend, ModernBackend):
            request = await scene.backend.next()
        await scene.gateway.settle()
        request.text("done")
        await pending.result()
        await scene.gateway.settle()


async def resumed(scene: Scene, recording: Recording) -> None:
    """A stream that broke off is taken up again by its last event id, and then brings the result."""
    pending = scene.client.begin("tools/call", {"name": "alpha__ask", "arguments": {}}, progress=1)
    request = await scene.backend.next()
    request.progress(1)
    await pending.next("notifications/progress")
    pending.drop()
    await scene.gateway.settle()
    with recording():
        rest = scene.client.listen(pending.events[-1].id)
        rest.id = pending.id
        await rest.head()
        request.text("done")
        await rest.result()
        await scene.gateway.settle()


class Flow(NamedTuple):
    """Something that is played, and between whom."""

    play: Callable[[Scene, Recording], Awaitable[None]]
    client: str
    server: str
    endpoint: str = ""


FLOWS: dict[str, Flow] = {
    "legacy → legacy, transparent": Flow(plain, "legacy", "legacy", "alpha"),
    **{
        f"{client} → {server}, aggregate": Flow(plain, client, server)
        for client, server in (("legacy", "legacy"), ("legacy", "modern"), ("modern", "modern"), ("modern", "legacy"))
    },
    **{
        f"elicitation, {client} → {server}": Flow(elicitation, client, server)
        for client, server in (("legacy", "legacy"), ("legacy", "modern"), ("modern", "legacy"), ("modern", "modern"))
    },
    "SSE resumed, then the answer": Flow(resumed, "legacy", "legacy"),
}


class Bound(NamedTuple):
    """What a plain call may cost at most."""

    hops: int
    calls: int | None = None


BOUNDS: dict[str, Bound] = {
    "legacy → legacy, transparent": Bound(75, 220),
    "legacy → legacy, aggregate": Bound(75, 220),
    "modern → legacy, aggregate": Bound(125),
}
THERE_AND_BACK = 4
"""By no pair of files more often, in a plain call."""


async def _traced(flow: Flow) -> Trace:
    make = ModernBackend if flow.server == "modern" else Backend
    backend = make("alpha", tools=("echo", "ask"), held={"ask"}, kind="http")
    can_be_asked = {"elicitation": {"form": {}}}
    async with open_gateway(backend) as gateway:
        if flow.client == "modern":
            client: Any = ModernClient(gateway.actors.door, gateway.nursery, flow.endpoint, capabilities=can_be_asked)
        else:
            client = await gateway.connect(flow.endpoint, capabilities=can_be_asked)
        scene = Scene(gateway, client, backend)
        for _ in range(2):
            await flow.play(scene, nullcontext)
            await gateway.settle()
        trace = Trace()
        await flow.play(scene, trace.recording)
        return trace


def trace(name: str) -> Trace:
    """Plays one of the flows."""
    _run._r.seed(0)  # the order in which trio resumes tasks that can go on at the same moment
    forever = (patch.object(cell, "BURST_SECONDS", inf), patch.object(dispatcher, "TURN_SECONDS", inf))
    with forever[0], forever[1]:  # a turn ends by the real clock, so a slow machine would have more of them
        return trio.run(partial(_traced, FLOWS[name]), clock=MockClock(autojump_threshold=0))


# What is shown


def table() -> str:
    """One row a flow, in Markdown."""
    rows = ["| flow | calls (runtime) | files | hops | there and back |", "| --- | --- | --- | --- | --- |"]
    for name in FLOWS:
        of = trace(name)
        worst = ", ".join(
            f"{a.removesuffix('.py')} ↔ {b.removesuffix('.py')} {n}"
            for (a, b), n in sorted(of.there_and_back.items(), key=lambda item: (-item[1], item[0]))[:WORST]
        )
        rows.append(f"| {name} | {len(of.calls)} ({of.runtime}) | {len(set(of.way))} | {of.hops} | {worst} |")
    return "\n".join(rows) + "\n"


def render(text: str) -> str:
    """The document with a fresh table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Counts what one message goes through.")
    parser.add_argument("--update", action="store_true", help="write the table into ARCHITECTURE.md")
    parser.add_argument("--show", metavar="FLOW", choices=FLOWS, help="print each call of this flow, in order")
    arguments = parser.parse_args()
    if arguments.show:
        print(*(f"{call.file}  {call.name}" for call in trace(arguments.show).calls), sep="\n")  # noqa: T201
    elif arguments.update:
        DOCUMENT.write_text(render(DOCUMENT.read_text()))
    else:
        print(table(), end="")  # noqa: T201


if __name__ == "__main__":
    main()
