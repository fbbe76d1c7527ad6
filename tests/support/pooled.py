"""Clients without sessions at the affinity pools of replicas.

async with open_replicas(2, alpha := asker()) as (one, two):
    asked, request = await suspend(client(one), alpha)
    call = client(two).begin("tools/call", retry(asked))
    request.text("done")
    assert text(await call.result()) == "done"
"""

from __future__ import annotations

from typing import Any

from actors.ports import ANONYMOUS, Principal
from tests.support.harness import Gateway
from tests.support.mcp_backend import Backend
from tests.support.modern_client import VERSION, ModernClient
from tests.support.schemas import assert_valid, definition_of_error

MAY_ALL = {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
GIVEN = {"action": "accept", "content": {"name": "Ada"}}


def asker(kind: str = "http", **more: Any) -> Backend:
    return Backend("alpha", tools=("echo", "ask"), held={"ask"}, kind=kind, **more)


def client(gateway: Gateway, principal: Principal = ANONYMOUS, **more: Any) -> ModernClient:
    more.setdefault("capabilities", MAY_ALL)
    return ModernClient(gateway.door, gateway.nursery, more.pop("endpoint", "alpha"), principal, **more)


def text(result: Any) -> str:
    return str(result["content"][0]["text"])


async def echo(where: ModernClient, words: str = "hi") -> str:
    return text(await where.call("tools/call", {"name": "echo", "arguments": {"text": words}}))


def retry(asked: Any) -> dict[str, Any]:
    """The params of a call that comes with answers to all that was asked."""
    answers = dict.fromkeys(asked["inputRequests"], GIVEN)
    return {"name": "ask", "inputResponses": answers, "requestState": asked["requestState"]}


def executed(backend: Backend) -> int:
    return len(backend.asked_for("tools/call"))


async def reached_from(where: Gateway, owner: Gateway, alpha: Backend) -> tuple[Any, Any]:
    """A call by way of one replica of a client whose pool another one has: it, and the request at the server."""
    await echo(client(owner))
    await alpha.next()
    call = client(where).begin("tools/call", {"name": "ask"})
    return call, await alpha.next()


async def suspend(where: ModernClient, alpha: Backend) -> tuple[Any, Any]:
    """A call that waits for answers: what its client was asked, and the request at the server."""
    call = where.begin("tools/call", {"name": "ask"})
    request = [await alpha.next() for _ in range(executed(alpha) - alpha.taken["tools/call"] + 1)][-1]
    request.ask("elicitation/create", FORM)
    return await call.result(), request


async def error_of(pending: Any) -> Any:
    """What a request came to, if that is an error as the modern revision has them."""
    response = await pending.response()
    assert_valid(response, VERSION, "server", error=definition_of_error(response, VERSION))
    return await pending.error()
