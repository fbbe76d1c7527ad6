"""An MCP server in memory that runs its tools as tasks (2025-11-25), as the test says.

backend = TaskBackend("alpha")                  # tools `must`, `may` and `never`
call = client.begin("tools/call", {"name": "must"})
task = await backend.task()
task.status = "input_required"
request = await task.wanted()                   # somebody waits for the result
asked = request.ask("elicitation/create", {**FORM, **task.related})
task.complete("done")
"""

from __future__ import annotations

from typing import Any

import trio

from tests.support.mcp_backend import EVERYTHING, WAIT, Backend, Message, Request, tool

RELATED = "io.modelcontextprotocol/related-task"
TASKS = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
SUPPORT = {"must": "required", "may": "optional", "never": "forbidden"}
TERMINAL = ("completed", "failed", "cancelled")


class Task:
    """One task, and the requests that wait for its result."""

    def __init__(self, backend: TaskBackend, id: str, request: Request) -> None:
        self.id = id
        self.request = request
        self.status = "working"
        self.poll = 500
        self.outcome: Message | None = None
        self.waiting: list[Request] = []
        self._backend = backend

    @property
    def flat(self) -> Message:
        """As `tasks/get` gives it."""
        at = "2026-01-01T00:00:00Z"
        ttl = self.request.params["task"].get("ttl")
        times = {"createdAt": at, "lastUpdatedAt": at, "ttl": ttl, "pollInterval": self.poll}
        return {"taskId": self.id, "status": self.status, **times}

    @property
    def related(self) -> Message:
        """What its messages carry."""
        return {"_meta": {RELATED: {"taskId": self.id}}}

    async def wanted(self) -> Request:
        """The first request for its result."""
        with trio.fail_after(WAIT):
            while not self.waiting:
                await self._backend.changed.park()
        return self.waiting[0]

    def complete(self, text: str = "done", status: str = "completed", **members: Any) -> None:
        """It has its result."""
        self.status = status
        self.outcome = {"content": [{"type": "text", "text": text}], **members}
        for request in self.waiting:
            self.answer(request)

    def answer(self, request: Request) -> None:
        """Gives its result to a request for it."""
        if self.outcome is None:
            request.error(-32603, "the task was cancelled")
        else:
            request.result({**self.outcome, **self.related})

    def tell(self) -> None:
        """Tells its status."""
        self.request.upstream.notify("notifications/tasks/status", self.flat)


class TaskBackend(Backend):
    """`tasks` are those that it made, in order."""

    def __init__(self, name: str = "alpha", *, declares: Any = TASKS, **more: Any) -> None:
        tools = [tool(n, execution={"taskSupport": support}) for n, support in SUPPORT.items()]
        capabilities = {**EVERYTHING, **({"tasks": declares} if declares is not None else {})}
        super().__init__(name, **{"tools": tools, "capabilities": capabilities, **more})
        self.tasks: list[Task] = []
        self.changed = trio.lowlevel.ParkingLot()
        self._seen = 0

    async def task(self) -> Task:
        """The next task, each once."""
        with trio.fail_after(WAIT):
            while len(self.tasks) <= self._seen:
                await self.changed.park()
        self._seen += 1
        return self.tasks[self._seen - 1]

    def came(self, request: Request) -> None:
        self.requests.append(request)
        self._lot.unpark_all()
        if request.method in self.mute or self.silent:
            return
        if request.method == "tools/call" and "task" in request.params:
            self._create(request)
        elif request.method == "tools/call" and SUPPORT.get(request.params["name"]) == "required":
            request.error(-32601, "this tool runs as a task only")
        elif request.method.startswith("tasks/"):
            self._about(request)
        else:
            self.requests.pop()
            super().came(request)
        self.changed.unpark_all()

    def _create(self, request: Request) -> None:
        task = Task(self, f"{self.name}-task-{len(self.tasks) + 1}", request)
        self.tasks.append(task)
        request.result({"task": task.flat})

    def _about(self, request: Request) -> None:
        task = next((t for t in self.tasks if t.id == request.params["taskId"]), None)
        if task is None:
            request.error(-32602, "no such task")
        elif request.method == "tasks/get":
            request.result(task.flat)
        elif request.method == "tasks/cancel":
            task.status = "cancelled"
            request.result(task.flat)
        elif task.status in TERMINAL:
            task.answer(request)
        else:
            task.waiting.append(request)
