"""Tools and questions that several tests give to their backends."""

from __future__ import annotations

from typing import Any

import trio

from tests.interaction.backend import Backend, Connection, Request, text
from tests.support.wire_client import Call, Message, RpcError, WireClient


class Steps:
    """A tool that says one log line a step, and answers after the last one."""

    def __init__(self, backend: Backend, name: str = "steps") -> None:
        self._go, self._gone = trio.open_memory_channel[int](100)
        self.running: list[Request] = []

        @backend.tool(name)
        async def steps(request: Request) -> Message:
            self.running.append(request)
            while (step := await self._gone.receive()) >= 0:
                request.log("info", f"step {step}")
            return text("done")

    def step(self, *steps: int) -> None:
        """Further steps; a negative one answers."""
        for step in steps:
            self._go.send_nowait(step)


async def log_of(call: Call) -> str:
    """The next message, a log line."""
    message = await call.message("notifications/message")
    data: str = message["params"]["data"]
    return data


async def connection_of(client: WireClient, backend: Backend) -> Connection:
    """This client's own connection to a backend, over which it can say things unasked."""
    backend.result("touch", text("ok"))
    name = "touch" if client.path.endswith(backend.name) else f"{backend.name}__touch"
    await client.call(name)
    return backend.connections[-1]


EVERYTHING: dict[str, Any] = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
}
"""All that a client can declare."""

MESSAGE = {"role": "user", "content": {"type": "text", "text": "say"}}
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "said"}, "model": "m", "stopReason": "endTurn"}
FORM: Message = {
    "message": "who are you?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
URL: Message = {
    "mode": "url",
    "message": "please sign in",
    "url": "https://example.com/login?x=1",
    "elicitationId": "e-1",
}

ASKS: dict[str, tuple[Message, Message]] = {
    "sampling/createMessage": ({"messages": [MESSAGE], "maxTokens": 10}, SAMPLED),
    "elicitation/create": (FORM, {"action": "accept", "content": {"name": "Ann"}}),
    "roots/list": ({}, {"roots": [{"uri": "file:///home/ann", "name": "home"}]}),
}
"""Questions of each kind, and a good answer."""


def asking(backend: Backend, name: str = "ask") -> None:
    """A tool that asks the client what it is told to, and answers with what it got."""

    @backend.tool(name)
    async def ask(request: Request) -> Message:
        method, params = request.arguments["method"], request.arguments.get("params")
        try:
            answer = await request.ask(method, params)
        except RpcError as error:
            return {**text("error"), "_meta": {"code": error.code, "message": error.message}}
        return {**text("answer"), "_meta": {"answer": answer}}
