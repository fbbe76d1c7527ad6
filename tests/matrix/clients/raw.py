"""The matrix's client of revision 2024-11-05, which had no SDK with Streamable HTTP: plain HTTP, and nothing kept."""

from __future__ import annotations

import itertools
import json
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
from visit import Failed, Params, first, main

REVISION = "2024-11-05"
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class RawPeer:
    """One session, with its GET stream."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.revision = ""
        self.told: list[tuple[str, Params]] = []
        self.asked: list[str] = []
        self.decline = False
        self._http = http
        self._url = url
        self._headers = dict(ACCEPT)
        self._ids = itertools.count(1)
        self._progress: dict[Any, list[float]] = {}

    async def initialize(self) -> None:
        capabilities = {"sampling": {}, "roots": {"listChanged": True}}
        params = {
            "protocolVersion": REVISION,
            "capabilities": capabilities,
            "clientInfo": {"name": "raw", "version": "1"},
        }
        self.revision = (await self.request("initialize", params))["protocolVersion"]
        await self._post({"method": "notifications/initialized"})

    async def listen(self, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> None:
        """The GET stream, until cancelled."""
        async with self._http.stream("GET", self._url, headers=self._headers, timeout=None) as stream:
            task_status.started()
            async for message in _events(stream):
                await self._take(message)

    async def request(self, method: str, params: Params, progress: list[float] | None = None) -> Params:
        id = next(self._ids)
        if progress is not None:
            self._progress[id] = progress
            params = {**params, "_meta": {"progressToken": id}}
        answer = await self._post({"id": id, "method": method, "params": params}, id)
        if "error" in answer:
            raise Failed(answer["error"]["code"], answer["error"].get("data"))
        result: Params = answer["result"]
        return result

    async def _post(self, message: Params, id: int | None = None) -> Params:
        body = {"jsonrpc": "2.0", **message}
        async with self._http.stream("POST", self._url, headers=self._headers, json=body) as response:
            session = response.headers.get("mcp-session-id")
            if session is not None:
                self._headers["Mcp-Session-Id"] = session
            if id is None:
                return {}
            if response.headers.get("content-type", "").startswith("application/json"):
                answer: Params = json.loads(await response.aread())
                return answer
            async for event in _events(response):
                if event.get("id") == id and "method" not in event:
                    return event
                await self._take(event)
        raise Failed(0, "no answer")

    async def _take(self, message: Params) -> None:
        method = message.get("method", "")
        if "id" not in message:
            params = message.get("params", {})
            self.told.append((method, params))
            if method == "notifications/progress":
                self._progress[params["progressToken"]].append(params["progress"])
            return
        self.asked.append(method)
        said: dict[str, Any] = {
            "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "words"}},
            "roots/list": {"roots": [{"uri": "file:///home", "name": "home"}]},
        }
        await self._post({"id": message["id"], "result": said[method]})

    async def log_at(self, level: str | None) -> None:
        await self.request("logging/setLevel", {"level": level or "emergency"})

    async def watch(self, uri: str | None) -> Any:
        async def end() -> None:
            if uri is not None:
                await self.request("resources/unsubscribe", {"uri": uri})

        if uri is not None:
            await self.request("resources/subscribe", {"uri": uri})
        return end

    async def abandon(self, method: str, params: Params) -> None:
        id = next(self._ids)
        steps = self._progress[id] = []
        wanted = {**params, "_meta": {"progressToken": id}}

        async def begin() -> None:
            await self._post({"id": id, "method": method, "params": wanted}, id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            await first(steps)
            await self._post({"method": "notifications/cancelled", "params": {"requestId": id}})


async def _events(response: httpx.Response) -> Any:
    data: list[str] = []
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            message = json.loads("\n".join(data))
            data = []
            yield message


@asynccontextmanager
async def connect(url: str) -> Any:
    async with httpx.AsyncClient(timeout=30) as http, anyio.create_task_group() as tasks:
        peer = RawPeer(http, url)
        await peer.initialize()
        await tasks.start(peer.listen)
        yield peer
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    main(connect)
