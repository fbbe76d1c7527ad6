"""A server without sessions in memory, for tests of the actors: `Backend` in the words of 2026-07-28.

    backend = ModernBackend("alpha", held={"ask"}, kind="http")
    request = await backend.next()
    needs(request, "state", name={"method": "elicitation/create", "params": {...}})
    again = await backend.next()
    assert again.params["inputResponses"] == {...}
    again.text("done")

It acknowledges listens by itself (`backend.listens`), and says what changed on all that want to hear it.
"""

from __future__ import annotations

from typing import Any

from tests.support.mcp_backend import Backend, Message, Request

MODERN = "2026-07-28"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
FLAGS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}


class ModernBackend(Backend):
    """One server. `sessions`: it speaks the handshake era too; else `initialize` is refused with this code."""

    def __init__(
        self,
        name: str = "alpha",
        *,
        sessions: bool = False,
        refusal: int = -32601,
        hints: Message | None = None,
        **more: Any,
    ) -> None:
        super().__init__(name, **more)
        self.sessions = sessions
        self.refusal = refusal
        self.hints = hints or {"ttlMs": 0, "cacheScope": "private"}
        self.listens: dict[int | str, tuple[Request, Message]] = {}
        self.honours = lambda wanted: wanted

    def list(self, request: Request) -> None:
        if self.sessions or "_meta" in request.params:
            super().list(request)
        else:
            request.error(-32602, "_meta is missing")

    def answer(self, request: Request) -> None:
        match request.method:
            case "initialize" if not self.sessions:
                request.error(self.refusal, "no such thing here", {"supported": [MODERN], "requested": "2025-11-25"})
            case "server/discover":
                info = {"io.modelcontextprotocol/serverInfo": {"name": self.name, "version": "1"}}
                request.result(
                    {
                        "resultType": "complete",
                        "supportedVersions": [MODERN],
                        "capabilities": self.capabilities,
                        "_meta": info,
                        **self.hints,
                        **self.welcome,
                    }
                )
            case "subscriptions/listen":
                self._listen(request)
            case _:
                super().answer(request)

    def _listen(self, request: Request) -> None:
        wanted: Message = self.honours(request.params["notifications"])
        self.listens[request.id] = (request, wanted)
        self._tell(request, "notifications/subscriptions/acknowledged", {"notifications": wanted})

    def _tell(self, request: Request, method: str, params: Message) -> None:
        related = {"related": request.id} if self.kind == "http" else {}
        request.upstream.notify(method, {**params, "_meta": {SUBSCRIPTION: request.id}}, **related)

    def change(self, method: str, uri: str | None = None) -> int:
        """Says that something has changed, on all listens that want to hear it: on how many."""
        told = 0
        for request, wanted in self.live:
            wants = uri in wanted.get("resourceSubscriptions", []) if uri is not None else FLAGS[method] in wanted
            if wants:
                told += 1
                self._tell(request, method, {} if uri is None else {"uri": uri})
        return told

    @property
    def live(self) -> list[tuple[Request, Message]]:
        """The listens that nobody has ended."""
        return [
            (request, wanted)
            for request, wanted in self.listens.values()
            if not request.upstream.transport.closed
            and not request.cancelled.is_set()
            and request.id not in request.upstream.transport.forgotten
        ]


def needs(request: Request, state: str | None = None, **questions: Message) -> None:
    """The answer to this request is a question."""
    result: Message = {"resultType": "input_required"}
    if questions:
        result["inputRequests"] = questions
    if state is not None:
        result["requestState"] = state
    request.result(result)
