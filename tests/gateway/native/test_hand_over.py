"""Sessions of a server go over to another one, as when it is loaded anew."""

from typing import Any

import trio

from gateway.native import NotFoundError, ResourceInfo, Server

URI = "shop://one"


class Shop:
    """Provides one resource, and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def list(self, cursor: str | None) -> tuple[list[ResourceInfo], str | None]:
        return [ResourceInfo(URI, "one")], None

    async def read(self, uri: str) -> str:
        if uri != URI:
            raise NotFoundError(uri)
        return "one"

    async def subscribe(self, uri: str) -> None:
        self.told.append(f"subscribe {uri}")

    async def unsubscribe(self, uri: str) -> None:
        self.told.append(f"unsubscribe {uri}")


def shop(tool: str, provider: Shop, gate: trio.Event | None = None) -> Server:
    server = Server("shop")
    server.provide("shop", provider)

    @server.tool(name=tool)
    async def serve() -> str:
        if gate is not None:
            await gate.wait()
        return tool

    @server.resource("clock://now", every=60)
    async def now() -> str:
        return tool

    return server


async def test_a_session_goes_on_with_the_other_server_and_its_client_is_told(
    connect: Any, autojump_clock: trio.testing.MockClock
) -> None:
    gate, old_shop, new_shop = trio.Event(), Shop(), Shop()
    old, new = shop("old", old_shop, gate), shop("new", new_shop)
    client = await connect(old)
    for uri in (URI, "clock://now"):
        await client.request("resources/subscribe", {"uri": uri})
    answers: list[dict[str, Any]] = []

    async def call() -> None:
        answers.append(await client.call("old"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        old.hand_over(new)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    assert answers[0]["content"][0]["text"] == "old", "what runs ends as it began"
    assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == ["new"]
    assert (await client.call("new"))["content"][0]["text"] == "new"
    methods = [(method, params.get("uri")) for method, params, _ in client.notes]
    assert {("notifications/tools/list_changed", None), ("notifications/resources/list_changed", None)} <= {*methods}
    assert {uri for method, uri in methods if method == "notifications/resources/updated"} == {URI, "clock://now"}
    assert old_shop.told == [f"subscribe {URI}", f"unsubscribe {URI}"]
    assert new_shop.told == [f"subscribe {URI}"]
    assert (old.connected, new.connected) == (0, 1)
    client.notes.clear()
    new.updated(URI)
    await trio.sleep(61)
    assert {params["uri"] for _, params, _ in client.notes} == {URI, "clock://now"}
