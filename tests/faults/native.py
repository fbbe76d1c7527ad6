"""The same tools in a server of the gateway's own process, by its own API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import trio
from pydantic import BaseModel

from actors.ports import Transport, TransportEvent
from actors.protocol.table import BackendSpec, NativeTarget
from gateway.backends.native import NativeTransport
from gateway.native import Context, Server
from tests.faults.server import TICK
from tests.support.harness import RecordingLog


class Consent(BaseModel):
    """A form."""

    yes: bool


Handler = Callable[[str], None]


class NativeBackend:
    """Stands where a scripted server would. `bug` is called by each tool in its middle, with the key of the call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.executions: Counter[str] = Counter()
        self.served: dict[object, set[str]] = {}
        self.bug: Handler = lambda key: None
        self.fault: Any = None
        self.open: list[object] = []
        self.log = RecordingLog()
        self.server = Server(name)
        self.spec = BackendSpec(name, NativeTarget(self.server))
        for tool in (self.quick, self.wait, self.stream, self.ask):
            self.server.tool(tool)

        @self.server.template("test:///{who}")
        async def who(who: str) -> str:
            return who

    def connect(self, spec: BackendSpec, emit: Callable[[TransportEvent], None], modern: bool = False) -> Transport:
        """As in the port `Connector`."""
        return NativeTransport(spec, emit, log=self.log)

    async def quick(self, key: str) -> str:
        """Answers at once."""
        self.executions[key] += 1
        await trio.lowlevel.checkpoint()
        self.bug(key)
        return f"quick {key}"

    async def wait(self, key: str) -> str:
        """Says nothing for a while."""
        self.executions[key] += 1
        await trio.sleep(5 * TICK)
        self.bug(key)
        await trio.sleep(5 * TICK)
        return f"wait {key}"

    async def stream(self, key: str, ctx: Context) -> str:
        """Reports and logs."""
        self.executions[key] += 1
        for step in range(1, 4):
            await trio.sleep(TICK)
            await ctx.progress(step, message=key)
            await ctx.log("info", {"key": key, "step": step})
            if step == 2:
                self.bug(key)
        await trio.sleep(TICK)
        return f"stream {key}"

    async def ask(self, key: str, ctx: Context) -> str:
        """Asks the user, then the model."""
        self.executions[key] += 1
        await trio.sleep(TICK)
        consent = await ctx.elicit(key, Consent)
        self.bug(key)
        sample = await ctx.sample(key)
        return f"ask {consent.action} {sample.model} {key}"
