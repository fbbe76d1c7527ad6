"""A raw client: it keeps a session, writes every exchange into the story, resumes its streams by the rules
(Last-Event-ID, `retry`), and never repeats a call.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import trio

from tests.chaos.story import Call, Exchange, Listening, Message, Seen, Story, is_answer
from tests.faults.client import Exchange as Http
from tests.faults.client import LeftError

now = time.monotonic
LATER = frozenset({0, 429, 502, 503, 504})
"""Statuses that say: try again, if it may be tried again. (0: the connection broke.)"""
GIVE_UP = 90.0
"""Seconds, on a machine of usual speed, after which a client no longer waits."""
THINKS = (0.2, 1.4)
"""Seconds between two calls of a client, from and to, on a machine of usual speed."""
TOOLS = {"quick": 24, "work": 8, "cut": 4, "ask": 4, "cancel": 1}
"""What a client does, and how often. `cut`: it works, and the client loses its connection on purpose. `cancel`: it
works, and the client has changed its mind."""
ENDS = 0.01
"""How often a client ends its session instead of calling."""

Take = Callable[[Seen], Awaitable[bool]]
"""What to do with an event; whether the client has had enough and leaves."""


@dataclass(frozen=True)
class Manner:
    """What tells clients apart. `endpoint`: of one backend, or of all (empty)."""

    backends: tuple[str, ...]
    endpoint: str = ""
    revision: str = "2025-11-25"
    token: str = ""


class Client:
    """One session at a time, with two lanes of calls in it and a GET stream beside them."""

    def __init__(
        self, who: str, port: int, manner: Manner, story: Story, chance: random.Random, nursery: trio.Nursery
    ) -> None:
        self.who = who
        self.manner = manner
        self.session = ""
        self.listening: Listening | None = None
        self._port = port
        self._story = story
        self._chance = chance
        self._nursery = nursery
        self._opening = trio.Lock()
        self._ids = 0

    # Its life

    async def live(self, over: trio.Event) -> None:
        """Calls, until it is over; ends when the last of them has its outcome."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lane, self.manner.backends, over)
            pooled = tuple(name for name in self.manner.backends if name != "stdio")
            if pooled:  # a process takes one call at a time of who can be asked, so the other lane would only wait
                nursery.start_soon(self._lane, pooled, over)

    async def _lane(self, backends: tuple[str, ...], over: trio.Event) -> None:
        await trio.sleep(self._chance.uniform(0, 1))
        while not over.is_set():
            if not await self.ready():
                await trio.sleep(0.5)
                continue
            if self._chance.random() < ENDS:
                await self._end()
                continue
            call = await self.call(self._chance.choice(backends), self._pick())
            if call.result is None:
                await trio.sleep(0.5)
            await trio.sleep(self._chance.uniform(*THINKS) * self._story.pace)

    def _pick(self) -> str:
        return self._chance.choices(tuple(TOOLS), tuple(TOOLS.values()))[0]

    async def last(self, within: float) -> None:
        """After all trouble it is served by every backend, and hears of its subscription."""
        with trio.move_on_after(within) as scope:
            for backend in self.manner.backends:
                while not await self.ready() or (await self.call(backend, "quick")).result is None:
                    await trio.sleep(1)
            await self._hears()
        if scope.cancelled_caught:
            self._story.unserved.append(self.who)

    async def _hears(self) -> None:
        began = now()
        while not any(
            seen.at > began and (seen.message or {}).get("method") == "notifications/resources/updated"
            for exchange in (self.listening.exchanges if self.listening else [])
            for seen in exchange.seen
        ):
            await trio.sleep(0.2)

    # Sessions

    async def ready(self) -> bool:
        """Whether there is a session now; if there is none it is opened."""
        async with self._opening:
            return bool(self.session) or await self._open()

    async def _open(self) -> bool:
        capabilities = {"elicitation": {}}
        about = {"name": self.who, "version": "1"}
        params = {"protocolVersion": self.manner.revision, "capabilities": capabilities, "clientInfo": about}
        opened = await self._request("initialize", params)
        if opened.result is None or not self.session:
            self.session = ""
            return False
        if await self._note({"method": "notifications/initialized"}) != 202:
            self.session = ""
            return False
        self.listening = Listening(self.who, self.session)
        self._story.listenings.append(self.listening)
        self._nursery.start_soon(self._listen, self.listening)
        while self.session:
            if (await self._request("resources/subscribe", {"uri": self._uri()})).result is not None:
                return True
            await trio.sleep(0.5)
        return False

    async def _end(self) -> None:
        """DELETE, whatever is under way."""
        async with self._opening:
            session, self.session = self.session, ""
            self._story.deleted[session] = now()
            with trio.move_on_after(GIVE_UP * self._story.slowness):
                while (await self._exchange([], "DELETE", None, None, enough, session)).status in LATER:
                    await trio.sleep(0.5)

    def _uri(self) -> str:
        """Of the resource that is this client's alone."""
        backend = self.manner.backends[0]
        return f"{backend}:///{self.who}"

    async def _listen(self, listening: Listening) -> None:
        """A GET stream, resumed whenever it ends, as long as there is the session."""
        after: str | None = None

        async def take(seen: Seen) -> bool:
            nonlocal after
            after = seen.id or after
            if seen.message is not None and "id" in seen.message:
                self._nursery.start_soon(self._answer, seen.message, listening.session)
            return False

        while self.session == listening.session:
            done = await self._exchange(listening.exchanges, "GET", None, after, take, listening.session)
            if done.status == 404:
                return
            if done.status == 400:
                after = None
            await trio.sleep(0.3 if done.status == 200 else 1.0)

    # Calls

    async def call(self, backend: str, tool: str) -> Call:
        """One call of a tool, to its outcome."""
        manner, tool = tool, "work" if tool in ("cut", "cancel") else tool
        steps = {"quick": 0, "ask": 2, "work": self._chance.randint(2, 6)}[tool]
        pause = self._chance.choice((0.02, 0.1, 0.3))
        thinks = self._chance.choice((0.05, 0.3, 1.0)) if tool == "ask" else 0.0
        key = f"{self.who}.{self._ids}"
        exposed = tool if self.manner.endpoint else f"{backend}__{tool}"
        params = {
            "name": exposed,
            "arguments": {"key": key, "steps": steps, "pause": pause},
            "_meta": {"progressToken": self._ids},
        }
        about = Call(self.who, key, 0, "", 0.0, tool, backend, steps, steps * pause + thinks)
        about.cancelled = manner == "cancel"
        return await self._request("tools/call", params, about, thinks, manner == "cut")

    async def _request(
        self, method: str, params: Message, about: Call | None = None, thinks: float = 0.0, cut: bool = False
    ) -> Call:
        id, self._ids = self._ids, self._ids + 1
        call = replace(
            about or Call(self.who, f"{self.who}.{method}", 0, "", 0.0), id=id, method=method, began=now(),
            session=self.session, exchanges=[],
        )  # fmt: skip
        self._story.calls.append(call)
        cuts = 1 if cut else 0
        last: str | None = None

        async def take(seen: Seen) -> bool:
            nonlocal cuts, last
            last = seen.id or last
            message = seen.message or {}
            if is_answer(message, id):
                return True
            if "id" in message and "method" in message:
                self._nursery.start_soon(self._answer, message, call.session, thinks)
            if call.cancelled and message:
                told = {"method": "notifications/cancelled", "params": {"requestId": id, "reason": "another idea"}}
                self._nursery.start_soon(self._note, told, call.session)
            if cuts and last is not None and message:
                cuts -= 1
                return True
            return False

        with trio.move_on_after(GIVE_UP * self._story.slowness) as scope:
            sent = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            done = await self._exchange(call.exchanges, "POST", sent, None, take, call.session)
            while not over(call, done) and last is not None and (done.status == 200 or done.status in LATER):
                await trio.sleep(self._chance.uniform(0.1, 0.6))
                done = await self._exchange(call.exchanges, "GET", None, last, take, call.session)
        call.given_up = scope.cancelled_caught
        call.ended = now()
        if done_with(call) == 404 and self.session == call.session:
            self.session = ""
        return call

    async def _answer(self, question: Message, session: str, thinks: float = 0.05) -> None:
        """Fills in the form."""
        await trio.sleep(thinks)
        key = question["params"]["message"].split()[-1]  # before it stands whose question it is
        result = {"action": "accept", "content": {"key": key}}
        await self._note({"id": question["id"], "result": result}, session)

    async def _note(self, message: Message, session: str | None = None) -> int:
        """The status of a notification or an answer, which may be sent again."""
        status, sent = 0, {"jsonrpc": "2.0", **message}
        with trio.move_on_after(GIVE_UP * self._story.slowness):
            while True:
                status = (await self._exchange([], "POST", sent, None, enough, session)).status
                if status not in LATER:
                    break
                await trio.sleep(0.5)
        return status

    # One exchange

    async def _exchange(
        self,
        log: list[Exchange],
        method: str,
        sent: Message | None,
        after: str | None,
        take: Take,
        session: str | None = None,
    ) -> Exchange:
        """One HTTP request to its end, or until the client has had enough; in its present session, or in another."""
        session = self.session if session is None else session
        done = Exchange(method, now(), after)
        log.append(done)
        http: Http | None = None
        try:
            http = Http(method, sent, after, await trio.open_tcp_stream("127.0.0.1", self._port), session)
            body = json.dumps(sent).encode() if sent is not None else b""
            await http.send(f"/mcp{self.manner.endpoint}", self._headers(body, after, session), body)
            await http.head()
            self._head(done, http)
            await self._read(done, http, take)
        except (OSError, LeftError):
            pass
        finally:
            done.ended = now()
            if http is not None:
                http.leave()
                done.end = http.end or "cut"
            else:
                done.end = "cut"
        return done

    def _head(self, done: Exchange, http: Http) -> None:
        done.status = http.status
        done.holder = http.headers.get("x-replica", "").rpartition(",")[2].strip()
        done.taken = "-" not in http.headers.get("x-connected", "").rpartition(",")[2]
        done.ours = http.status not in (0, 502, 504)
        if done.method == "POST" and "mcp-session-id" in http.headers and not self.session:
            self.session = http.headers["mcp-session-id"]

    async def _read(self, done: Exchange, http: Http, take: Take) -> None:
        if not http.streams:
            body = await http.whole()
            if done.status == 200 and body:
                seen = Seen(now(), None, json.loads(body))
                done.seen.append(seen)
                await take(seen)
            elif done.status >= 400:
                done.body = body[:600].decode(errors="replace")
            return
        while (event := await http.event()) is not None:
            seen = Seen(now(), event.id, event.message)
            done.seen.append(seen)
            if await take(seen):
                return

    def _headers(self, body: bytes, after: str | None, session: str) -> list[tuple[str, str]]:
        headers: dict[str, str] = {"host": f"127.0.0.1:{self._port}", "accept": "application/json, text/event-stream"}
        headers |= {"authorization": f"Bearer {self.manner.token}"}
        if body:
            headers |= {"content-type": "application/json", "content-length": str(len(body))}
        if session:
            headers |= {"mcp-session-id": session, "mcp-protocol-version": self.manner.revision}
        if after is not None:
            headers["last-event-id"] = after
        return list(headers.items())


async def enough(_seen: Any) -> bool:
    return True


def over(call: Call, last: Exchange) -> bool:
    """Whether nothing more will come. What was cancelled may end without an answer."""
    return bool(call.answers) or (call.cancelled and last.status == 200 and last.end == "whole")


def done_with(call: Call) -> int:
    """The status with which a replica refused it; 0 if none did."""
    return call.refusal.status if call.refusal is not None else 0


def manners(tokens: Mapping[str, str]) -> list[Manner]:
    """The kinds of clients, to be dealt out in turn."""
    first, second = tokens.values()
    return [
        Manner(("ids", "plain"), token=first),
        Manner(("plain", "ids"), token=second),
        Manner(("ids",), "/ids", token=first),
        Manner(("stdio", "ids"), token=second),
        Manner(("ids", "plain"), revision="2025-06-18", token=second),
        Manner(("plain",), "/plain", token=first),
        Manner(("ids", "stdio", "plain"), token=first),
        Manner(("stdio",), "/stdio", token=second),
    ]
