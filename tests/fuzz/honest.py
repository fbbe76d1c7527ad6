"""Clients that keep every rule, and whose every answer is checked exactly, whatever others do at the same time."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.fuzz import answers
from tests.fuzz.wire import BrokenAnswerError, Response, Wire

LEGACY, MODERN = "2025-11-25", "2026-07-28"
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
META = "io.modelcontextprotocol/"
ABOUT = {"name": "honest", "version": "1"}
CAPABILITIES = {"elicitation": {"form": {}}}
ANSWER_WITHIN = 60.0  # seconds: something is answered at all
AGAIN_AFTER = 0.2  # seconds after a 503, which says that nothing was executed


class WrongAnswerError(AssertionError):
    """An honest client got something else than what it asked for."""


@dataclass
class Client:
    """One client of one era, on one route to one honest server. `words` makes what it says."""

    wire: Wire
    token: str
    path: str
    prefix: str
    modern: bool
    rng: random.Random
    words: Callable[[], str]
    session: str | None = None
    checked: int = 0
    refused: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    on_session: Callable[[str], None] = lambda _: None
    _ids: Any = field(default_factory=itertools.count)

    # One message, and what comes of it

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        headers = {**ACCEPT, "authorization": f"Bearer {self.token}"}
        if self.modern:
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": method}
            if name is not None:
                headers["mcp-name"] = name
        elif self.session is not None:
            headers |= {"mcp-protocol-version": LEGACY, "mcp-session-id": self.session}
        return headers

    def message(self, method: str, params: dict[str, Any], id: int, token: str | None) -> dict[str, Any]:
        meta: dict[str, Any] = {"progressToken": token} if token is not None else {}
        if self.modern:
            meta |= {f"{META}protocolVersion": MODERN, f"{META}clientInfo": ABOUT}
            meta[f"{META}clientCapabilities"] = CAPABILITIES
        sent = {**params, "_meta": meta} if meta else params
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": sent}

    async def ask(self, method: str, params: dict[str, Any], **more: Any) -> Any:
        """The result. A 503 is no answer: it says that nothing was executed, and the request is sent again."""
        with trio.fail_after(ANSWER_WITHIN):
            while True:
                answer = await self._ask(method, params, **more)
                if answer is not None:
                    break
                self.refused += 1
                await trio.sleep(AGAIN_AFTER)
        if "result" not in answer:
            raise WrongAnswerError(f"{self}: {method} {params}: {answer}")
        return answer["result"]

    async def _ask(
        self, method: str, params: dict[str, Any], *, heard: list[Any] | None = None, cut: bool = False
    ) -> Any:
        id, name = next(self._ids), params.get("name") or params.get("uri")
        message = self.message(method, params, id, f"token-{id}" if heard is not None else None)
        body = json.dumps(message).encode()
        last: str | None = None
        async with self.wire.request("POST", self.path, self.headers(method, name), body) as response:
            if response.status == 503:
                return None
            if response.status != 200:
                raise WrongAnswerError(f"{self}: {method}: HTTP {response.status}: {await response.body()!r}")
            if method == "initialize" and (session := response.headers.get("mcp-session-id")) is not None:
                self.session = session
                self.on_session(session)
            while (event := await response.event()) is not None:
                last = event.id or last
                answer = await self._take(event.message, id, heard)
                if answer is not None:
                    return answer
                if cut and last is not None and self.rng.random() < 0.7:
                    break
            else:
                raise WrongAnswerError(f"{self}: {method}: the stream ended without an answer")
        self.kinds["resumed"] = self.kinds.get("resumed", 0) + 1
        return await self._resume(id, last, heard)

    async def _resume(self, id: int, last: str | None, heard: list[Any] | None) -> Any:
        while True:
            headers = {**self.headers("", None), "last-event-id": last or ""}
            async with self.wire.request("GET", self.path, headers) as response:
                if response.status != 503:
                    if response.status != 200:
                        raise WrongAnswerError(f"{self}: resume: HTTP {response.status}: {await response.body()!r}")
                    while (event := await response.event()) is not None:
                        last = event.id or last
                        answer = await self._take(event.message, id, heard)
                        if answer is not None:
                            return answer
            await trio.sleep(AGAIN_AFTER)

    async def _take(self, said: Any, id: int, heard: list[Any] | None) -> Any:
        if said is None:
            return None
        if "method" not in said:
            if type(said.get("id")) is not int or said["id"] != id:
                raise WrongAnswerError(f"{self}: the answer to {id} is {said}")
            return said
        if "id" in said:
            await self._answer(said)
        elif said["method"] == "notifications/progress":
            if heard is None or said["params"]["progressToken"] != f"token-{id}":
                raise WrongAnswerError(f"{self}: progress of somebody else's: {said}")
            heard.append(said["params"])
        elif not said["method"].endswith("list_changed"):
            raise WrongAnswerError(f"{self}: told of {said}")
        return None

    async def _answer(self, question: dict[str, Any]) -> None:
        color = self._color(question["params"])
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": color}
        async with self.wire.request(
            "POST", self.path, self.headers("", None), json.dumps(answer).encode()
        ) as response:
            if response.status not in (200, 202, 503):
                raise WrongAnswerError(f"{self}: its answer to {question}: HTTP {response.status}")

    def _color(self, question: dict[str, Any]) -> dict[str, Any]:
        self.asked = question["message"]
        self.color = {"action": "accept", "content": {"color": self.words()}}
        return self.color

    # What it does

    async def open(self) -> None:
        """A session, if its era has them."""
        self.session = None
        if self.modern:
            return
        about = {"protocolVersion": LEGACY, "capabilities": CAPABILITIES, "clientInfo": ABOUT}
        await self.ask("initialize", about)
        body = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        async with self.wire.request("POST", self.path, self.headers("", None), body) as response:
            if response.status not in (202, 503):
                raise WrongAnswerError(f"{self}: initialized: HTTP {response.status}")

    async def end(self) -> None:
        if self.session is not None:
            async with self.wire.request("DELETE", self.path, self.headers("", None)) as response:
                await response.body()
        self.session = None

    async def use(self) -> None:
        """One thing that clients do, and whether what comes of it is right."""
        kind = self.rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        await KINDS[kind][1](self)
        self.checked += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def expect(self, wanted: Any, seen: Any) -> None:
        if wanted != seen:
            raise WrongAnswerError(f"{self}: expected {wanted!r}, got {seen!r}")

    async def call(self, tool: str, value: str, **more: Any) -> Any:
        return await self.ask("tools/call", {"name": self.prefix + tool, "arguments": {"value": value}}, **more)

    def text(self, result: Any) -> str:
        self.expect((1, False), (len(result["content"]), result.get("isError", False)))
        said: str = result["content"][0]["text"]
        return said

    async def echo(self) -> None:
        value = self.words()
        self.expect(answers.echo(value), self.text(await self.call("echo", value)))

    async def steps(self) -> None:
        """Sometimes the connection breaks in the middle; a stream with ids goes on where it was."""
        value, heard = self.words(), []
        result = await self.call("steps", value, heard=heard, cut=not self.modern and self.rng.random() < 0.5)
        self.expect(answers.steps(value), self.text(result))
        numbers = list(range(1, answers.STEPS + 1))
        self.expect(
            [(number, f"{number} {value}") for number in numbers], [(h["progress"], h["message"]) for h in heard]
        )

    async def elicit(self) -> None:
        value = self.words()
        result = await self.call("elicit", value)
        if self.modern:
            self.expect("input_required", result["resultType"])
            [(key, question)] = result["inputRequests"].items()
            color = self._color(question["params"])
            params = {"name": f"{self.prefix}elicit", "arguments": {"value": value}}
            retry = {**params, "inputResponses": {key: color}, "requestState": result["requestState"]}
            result = await self.ask("tools/call", retry)
        self.expect(answers.elicited(value, self.color), self.text(result))
        if answers.question(value)["message"] not in self.asked:
            raise WrongAnswerError(f"{self}: asked {self.asked!r} for {value!r}")

    async def list_tools(self) -> None:
        """All pages. A list that changed between two of them, as hostile servers make it do, is read from its start."""
        found: list[str] | None = None
        with trio.fail_after(ANSWER_WITHIN):
            while found is None:
                found = await self._pages()
        own = sorted(name.removeprefix(self.prefix) for name in found if name.startswith(self.prefix))
        self.expect([tool["name"] for tool in answers.TOOLS], own)

    async def _pages(self) -> list[str] | None:
        """The names on all pages; None: the list changed meanwhile."""
        found: list[str] = []
        cursor: str | None = None
        while True:
            try:
                page = await self.ask("tools/list", {"cursor": cursor} if cursor is not None else {})
            except WrongAnswerError as refused:
                if cursor is None or "Stale cursor" not in str(refused):
                    raise
                return None
            found += [tool["name"] for tool in page["tools"]]
            if (cursor := page.get("nextCursor")) is None:
                return found

    async def read(self) -> None:
        uri = self.rng.choice(answers.RESOURCES)["uri"]
        scheme = f"{self.prefix.removesuffix('__')}+" if self.prefix else ""
        result = await self.ask("resources/read", {"uri": scheme + uri})
        self.expect([{"uri": scheme + uri, "text": answers.resource(uri)}], result["contents"])

    async def prompt(self) -> None:
        topic = self.words()
        result = await self.ask("prompts/get", {"name": f"{self.prefix}greeting", "arguments": {"topic": topic}})
        self.expect(answers.prompt(topic), result["messages"][0]["content"]["text"])

    async def renew(self) -> None:
        await self.end()
        await self.open()

    def __str__(self) -> str:
        return f"{'modern' if self.modern else 'legacy'} client on {self.path} {self.prefix}"


KINDS: dict[str, tuple[int, Callable[[Client], Any]]] = {
    "echo": (8, Client.echo),
    "steps": (4, Client.steps),
    "elicit": (2, Client.elicit),
    "tools": (1, Client.list_tools),
    "read": (2, Client.read),
    "prompt": (2, Client.prompt),
    "renew": (1, Client.renew),
}

__all__ = ["BrokenAnswerError", "Client", "Response", "WrongAnswerError"]
