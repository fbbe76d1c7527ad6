"""What a client without sessions sees of a server that has them, and lists other things to each connection."""

from typing import Any

import pytest
import trio

from actors.ports import Principal
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, Request, Upstream, tool
from tests.support.modern_client import ModernClient

CHANGED = "notifications/tools/list_changed"


class Growing(Backend):
    """Its tool `grow` adds a tool, `new`, for the connection on which it is called; `everywhere`: for all."""

    def __init__(self, name: str = "alpha", *, everywhere: bool = False, **more: Any) -> None:
        super().__init__(name, tools=("grow",), **more)
        self.everywhere = everywhere
        self.grown: list[Upstream] = []
        self.results["tools/list"] = lambda request: {
            "tools": [*self.lists["tools/list"], *self._more(request.upstream)]
        }
        self.results["tools/call"] = self._called

    def _more(self, upstream: Upstream) -> list[dict[str, Any]]:
        return [tool("new")] if upstream in self.grown or (self.everywhere and self.grown) else []

    def _called(self, request: Request) -> dict[str, Any]:
        if request.params["name"] == "grow":
            self.grown.append(request.upstream)
            request.upstream.notify(CHANGED)
        return {"content": [{"type": "text", "text": request.params["name"]}]}


@pytest.fixture(params=["stdio", "http"])
def alpha(request: pytest.FixtureRequest) -> Growing:
    """With sessions."""
    return Growing(kind=request.param)


def client(at: Gateway, endpoint: str = "", **more: Any) -> ModernClient:
    return ModernClient(at.actors.door, at.nursery, endpoint, **more)


async def names(one: ModernClient) -> list[str]:
    return [item["name"] for item in (await one.call("tools/list"))["tools"]]


async def call(one: ModernClient, name: str) -> str:
    return (await one.call("tools/call", {"name": name, "arguments": {}}))["content"][0]["text"]


async def test_a_tool_that_is_added_on_the_connection_of_a_client_is_listed_to_it_and_can_be_called(
    alpha, autojump_clock
):
    async with open_gateway(alpha) as at:
        one, other = client(at), client(at, principal=Principal("other"))
        assert await names(one) == ["alpha__grow"]
        assert await call(one, "alpha__grow") == "grow"
        assert await names(one) == ["alpha__grow", "alpha__new"]
        assert await call(one, "alpha__new") == "new"
        assert await names(other) == ["alpha__grow"], "it has no such connection"


async def test_a_tool_that_was_added_can_be_called_before_it_was_listed(alpha, autojump_clock):
    async with open_gateway(alpha) as at:
        one = client(at)
        assert await names(one) == ["alpha__grow"]
        await call(one, "alpha__grow")
        assert await call(one, "alpha__new") == "new"


async def test_whoever_subscribed_hears_of_it_and_then_sees_it(alpha, autojump_clock):
    async with open_gateway(alpha) as at:
        one = client(at)
        events = one.listen(tools=True)
        await events.next("notifications/subscriptions/acknowledged")
        assert await names(one) == ["alpha__grow"]
        await call(one, "alpha__grow")
        await events.next(CHANGED)
        assert await names(one) == ["alpha__grow", "alpha__new"]


async def test_lists_over_an_own_connection_are_asked_for_once_until_they_change(alpha, autojump_clock):
    async with open_gateway(alpha) as at:
        one = client(at)
        await call(one, "alpha__grow")
        for _ in range(3):
            assert await names(one) == ["alpha__grow", "alpha__new"]
        own = alpha.upstreams[-1]
        before = own.methods.count("tools/list")
        for _ in range(3):
            await names(one)
        assert own.methods.count("tools/list") == before
        own.notify(CHANGED)
        await at.settle()
        await names(one)
        assert own.methods.count("tools/list") == before + 1


async def test_the_connection_counts_on_every_endpoint_and_for_its_next_request_after_a_while(alpha, autojump_clock):
    async with open_gateway(alpha, groups={"all": ("alpha",)}) as at:
        assert await names(client(at)) == ["alpha__grow"]
        await call(client(at, "alpha"), "grow")
        assert await names(client(at)) == ["alpha__grow", "alpha__new"]
        await trio.sleep(at.services.limits.link_idle + 100)
        assert await names(client(at, "all")) == ["alpha__grow", "alpha__new"]
        assert await names(client(at)) == ["alpha__grow", "alpha__new"]


async def test_without_the_connection_the_lists_are_those_of_everybody_again(alpha, autojump_clock):
    async with open_gateway(alpha) as at:
        one = client(at)
        await call(one, "alpha__grow")
        assert await names(one) == ["alpha__grow", "alpha__new"]
        alpha.upstreams[-1].die()
        await at.settle()
        assert await names(one) == ["alpha__grow"]
        await trio.sleep(at.services.limits.broker_idle + at.services.limits.link_idle + 100)
        assert await names(one) == ["alpha__grow"]


async def test_a_list_that_can_not_be_had_over_the_own_connection_is_the_last_one_known(alpha, autojump_clock):
    async with open_gateway(alpha) as at:
        one = client(at)
        await call(one, "alpha__grow")
        assert await names(one) == ["alpha__grow", "alpha__new"]
        alpha.upstreams[-1].notify(CHANGED)
        alpha.mute.add("tools/list")
        assert await names(one) == ["alpha__grow", "alpha__new"]


@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize("hears", ["session", "transparent session", "client", "transparent client"])
async def test_what_one_connection_says_of_the_lists_makes_everybody_look_again(autojump_clock, kind, hears):
    alpha = Growing(kind=kind, everywhere=True)
    async with open_gateway(alpha) as at:
        await names(client(at, "alpha", principal=Principal("first")))  # finds out that it has sessions
        stranger = await at.connect(principal=Principal("other"))
        modern = client(at, principal=Principal("third"))
        assert await stranger.names() == ["alpha__grow"]
        assert await names(modern) == ["alpha__grow"]
        endpoint, prefix = ("alpha", "") if "transparent" in hears else ("", "alpha__")
        if "session" in hears:
            await (await at.connect(endpoint)).tool(f"{prefix}grow")
        else:
            await call(client(at, endpoint), f"{prefix}grow")
        await at.settle()
        for _ in range(2):  # what was known is the answer at once, and what is different is there soon
            await stranger.names()
            await names(modern)
            await trio.sleep(5)
        assert await stranger.names() == ["alpha__grow", "alpha__new"]
        assert await names(modern) == ["alpha__grow", "alpha__new"]
