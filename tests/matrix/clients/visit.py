"""What every client of the matrix tries on an endpoint, and what it saw: feature → outcome, in a few words.

A client on some SDK gives a `Peer`; this file knows no SDK, and imports nothing but the standard library and anyio.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio

PATIENCE = 90.0  # seconds for one feature: nothing waits for so long where all is well
PAGE = "https://example.com/open"
MEMO = "memo:///one"
Params = dict[str, Any]


class Failed(Exception):  # noqa: N818 - an outcome
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, data: Any = None) -> None:
        super().__init__(code)
        self.code = code
        self.data = data


class Peer(Protocol):
    """A connected client. `told` and `asked` grow while it is connected; `decline` refuses forms."""

    revision: str
    told: list[tuple[str, Params]]
    asked: list[str]
    decline: bool

    async def request(self, method: str, params: Params, progress: list[float] | None = None) -> Params:
        """The result as JSON. Raises Failed."""

    async def log_at(self, level: str | None) -> None:
        """From here on, log messages of this level and above are wanted; None: none are."""

    async def watch(self, uri: str | None) -> Callable[[], Awaitable[None]]:
        """Wants to hear of changes of a resource, or (None) of the list of tools; gives what ends it."""

    async def abandon(self, method: str, params: Params) -> None:
        """Begins a request, waits for its first progress, and cancels it."""


async def visit(peer: Peer) -> dict[str, str]:
    """Every feature in turn; one that hangs or breaks says so, and the others go on."""
    seen: dict[str, str] = {}
    for name, feature in FEATURES.items():
        peer.decline = False
        try:
            with anyio.fail_after(PATIENCE):
                seen[name] = await feature(peer)
        except Failed as failed:
            seen[name] = f"error {failed.code}"
        except TimeoutError:
            seen[name] = "hangs"
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {error}"[:200]
    return seen


# --- pieces


async def call(peer: Peer, name: str, **arguments: Any) -> Params:
    return await peer.request("tools/call", {"name": name, "arguments": arguments})


def texts(result: Params) -> str:
    said = " ".join(block["text"] for block in result["content"] if block["type"] == "text")
    return f"isError {said}" if result.get("isError") else said


async def until(condition: Callable[[], bool]) -> bool:
    with anyio.move_on_after(PATIENCE / 3):
        while not condition():
            await anyio.sleep(0.02)
        return True
    return False


async def first(steps: list[float]) -> None:
    """Until a request has made progress."""
    while not steps:
        await anyio.sleep(0.02)


async def kinds(peer: Peer, name: str) -> str:
    return " ".join(block["type"] for block in (await call(peer, name))["content"])


async def everything(peer: Peer, method: str, items: str) -> list[Params]:
    found: list[Params] = []
    cursor: str | None = None
    while True:
        page = await peer.request(method, {} if cursor is None else {"cursor": cursor})
        found += page[items]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


async def counted(peer: Peer) -> dict[str, int]:
    counts: dict[str, int] = json.loads(texts(await call(peer, "counted")))
    return counts


# --- features


async def tools(peer: Peer) -> str:
    names = [tool["name"] for tool in await everything(peer, "tools/list", "tools")]
    return "ok" if {"echo", "counted"} <= set(names) and len(names) == len(set(names)) > 5 else f"saw {names}"


async def echo(peer: Peer) -> str:
    return "ok" if texts(await call(peer, "echo", value="x")) == "you said x" else "wrong"


async def failing(peer: Peer) -> str:
    return texts(await call(peer, "fail"))


async def unknown(peer: Peer) -> str:
    return texts(await call(peer, "no-such-tool"))


async def structured(peer: Peer) -> str:
    result = await call(peer, "structured")
    return "structured" if result.get("structuredContent") == {"value": 1} else f"text {texts(result)}"


async def progress(peer: Peer) -> str:
    steps: list[float] = []
    await peer.request("tools/call", {"name": "progress", "arguments": {}}, steps)
    return "ok" if steps == [1.0, 2.0, 3.0] else f"saw {steps}"


async def logging(peer: Peer) -> str:
    await peer.log_at("warning")
    del peer.told[:]
    await call(peer, "logs")
    said = [params["data"] for method, params in peer.told if method == "notifications/message"]
    await peer.log_at(None)
    return "ok" if said == ["a warning"] else f"saw {said}"


async def cancel(peer: Peer) -> str:
    names = [tool["name"] for tool in await everything(peer, "tools/list", "tools")]
    if "slow" not in names:
        raise Failed(-32602)
    before = (await counted(peer))["cancelled"]
    await peer.abandon("tools/call", {"name": "slow", "arguments": {}})
    with anyio.move_on_after(PATIENCE / 3):
        while (await counted(peer))["cancelled"] == before:
            await anyio.sleep(0.05)
        return "ok"
    return "not cancelled"


async def once(peer: Peer, name: str, **arguments: Any) -> str:
    """What the tool says, and that it ran once however often the client was asked."""
    before = (await counted(peer))["executed"]
    said = texts(await call(peer, name, **arguments))
    ran = (await counted(peer))["executed"] - before
    return said if ran == 1 else f"{said}, ran {ran} times"


async def sampling(peer: Peer) -> str:
    return await once(peer, "sample")


async def sampling_tools(peer: Peer) -> str:
    return await once(peer, "sample", tools=True)


async def elicitation(peer: Peer) -> str:
    return await once(peer, "elicit")


async def decline(peer: Peer) -> str:
    peer.decline = True
    return await once(peer, "elicit")


async def elicitation_url(peer: Peer) -> str:
    return await once(peer, "elicit", url=True)


async def url_required(peer: Peer) -> str:
    """-32042: the page is opened, and the call made again."""
    try:
        said = texts(await call(peer, "needs_url"))
        return "isError, with the page" if said.startswith("isError") and PAGE in said else said
    except Failed as failed:
        if failed.code != -32042:
            raise
    return f"-32042, then {texts(await call(peer, 'needs_url'))}"


async def roots(peer: Peer) -> str:
    return texts(await call(peer, "roots"))


async def resources(peer: Peer) -> str:
    listed = [resource["uri"] for resource in await everything(peer, "resources/list", "resources")]
    read = (await peer.request("resources/read", {"uri": MEMO}))["contents"][0]
    return "ok" if listed == [MEMO] and read["text"] == "one" else f"saw {listed} {read}"


async def missing(peer: Peer) -> str:
    return str(await peer.request("resources/read", {"uri": "memo:///none"}))


async def templates(peer: Peer) -> str:
    listed = await everything(peer, "resources/templates/list", "resourceTemplates")
    read = (await peer.request("resources/read", {"uri": "memo:///by-id/7"}))["contents"][0]
    return "ok" if len(listed) == 1 and read["text"] == "id 7" else f"saw {listed} {read}"


async def subscription(peer: Peer) -> str:
    end = await peer.watch(MEMO)
    del peer.told[:]
    await call(peer, "touch")
    heard = ("notifications/resources/updated", MEMO)
    came = await until(lambda: heard in [(method, params.get("uri")) for method, params in peer.told])
    await end()
    return "ok" if came else "not told"


async def tools_changed(peer: Peer) -> str:
    end = await peer.watch(None)
    del peer.told[:]
    await call(peer, "change")
    came = await until(lambda: any(method == "notifications/tools/list_changed" for method, _ in peer.told))
    names = [tool["name"] for tool in await everything(peer, "tools/list", "tools")]
    await call(peer, "change")
    await end()
    return "ok" if came and "extra" in names else f"told {came}, saw {names}"


async def prompts(peer: Peer) -> str:
    names = [prompt["name"] for prompt in await everything(peer, "prompts/list", "prompts")]
    got = await peer.request("prompts/get", {"name": "greeting", "arguments": {"topic": "x"}})
    said = got["messages"][0]["content"]["text"]
    return "ok" if "greeting" in names and said == "About x" else f"saw {names} {said}"


async def prompt_asks(peer: Peer) -> str:
    got = await peer.request("prompts/get", {"name": "asking"})
    return str(got["messages"][0]["content"]["text"])


async def completion(peer: Peer) -> str:
    reference = {"type": "ref/prompt", "name": "greeting"}
    params = {"ref": reference, "argument": {"name": "topic", "value": "mu"}}
    got = await peer.request("completion/complete", params)
    return "ok" if got["completion"]["values"] == ["music", "museum"] else f"saw {got}"


async def trace(peer: Peer) -> str:
    meta = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}
    got = await peer.request("tools/call", {"name": "metadata", "arguments": {}, "_meta": meta})
    return "ok" if json.loads(texts(got)) == ["traceparent", "tracestate"] else texts(got)


async def method(peer: Peer) -> str:
    return str(await peer.request("nonsense/method", {}))


def block(name: str) -> Callable[[Peer], Awaitable[str]]:
    async def feature(peer: Peer) -> str:
        return await kinds(peer, name)

    return feature


FEATURES: dict[str, Callable[[Peer], Awaitable[str]]] = {
    "tools, in pages": tools,
    "tools/call": echo,
    "isError": failing,
    "unknown tool": unknown,
    "image": block("image"),
    "audio": block("audio"),
    "embedded resource": block("embedded"),
    "resource link": block("link"),
    "structured content": structured,
    "progress": progress,
    "log messages": logging,
    "cancellation": cancel,
    "sampling": sampling,
    "sampling with tools": sampling_tools,
    "elicitation, form": elicitation,
    "elicitation, declined": decline,
    "elicitation, url": elicitation_url,
    "url required (-32042)": url_required,
    "roots": roots,
    "resources": resources,
    "missing resource": missing,
    "resource templates": templates,
    "subscription": subscription,
    "tools/list_changed": tools_changed,
    "prompts": prompts,
    "prompt that elicits": prompt_asks,
    "completion": completion,
    "trace context": trace,
}


async def visit_at(connect: Callable[[str], Any], url: str) -> dict[str, str]:
    try:
        with anyio.fail_after(PATIENCE * 6):
            async with connect(url) as peer:
                return {"revision": peer.revision, **await visit(peer)}
    except BaseException as error:
        return {"broken": repr(error)[:2000]}


def main(connect: Callable[[str], Any]) -> None:
    """`program '{"name": "url", …}'`: visits each endpoint, all at once, and prints what was seen, as JSON."""
    seen: dict[str, dict[str, str]] = {}

    async def look(name: str, url: str) -> None:
        seen[name] = await visit_at(connect, url)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for name, url in json.loads(sys.argv[1]).items():
                tasks.start_soon(look, name, url)

    anyio.run(run)
    print(json.dumps(seen))
