"""Whose a name is: by the configuration alone, for clients with and without sessions."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tests.support.door_client import Client, RpcError
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend, tool
from tests.support.modern_backend import ModernBackend
from tests.support.modern_client import ModernClient

AnyClient = Client | ModernClient
Connect = Callable[..., Awaitable[AnyClient]]


@pytest.fixture(params=["legacy", "modern"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """A client of this era."""

    async def connected(gateway: Gateway, endpoint: str = "") -> AnyClient:
        if request.param == "modern":
            return ModernClient(gateway.actors.door, gateway.nursery, endpoint)
        return await gateway.connect(endpoint)

    return connected


@pytest.fixture(params=[Backend, ModernBackend], ids=["sessions", "sessionless"])
def make(request: pytest.FixtureRequest) -> type[Backend]:
    """Servers of this era."""
    return request.param


async def names(client: AnyClient, method: str = "tools/list", member: str = "name") -> list[str]:
    kind = method.partition("/")[0]
    return [item[member] for item in (await client.call(method))[kind]]


async def called(client: AnyClient, name: str) -> str:
    result = await client.call("tools/call", {"name": name, "arguments": {}})
    return result["content"][0]["text"]


async def refused(client: AnyClient, method: str, params: dict[str, Any]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await client.call(method, params)
    return caught.value


# Names of two servers


async def test_a_name_means_the_same_server_whoever_was_known_first(connect, make, autojump_clock):
    a, a_ = make("a", tools=("_x", "y"), prompts=("_p",)), make("a_", tools=("x",), prompts=("p",))
    async with open_gateway(a, a_) as gateway:
        a.down = True
        client = await connect(gateway)
        [early] = await names(client)
        assert await called(client, early) == "a_: x"
        [prompt] = await names(client, "prompts/list")
        a.down = False
        later = await connect(gateway)
        with trio.fail_after(100):
            while len(all_names := await names(later)) < 3:
                await trio.sleep(1)
        assert early in all_names
        said = [await called(later, name) for name in all_names]
        assert said == ["a: _x", "a: y", "a_: x"]
        assert all_names[1] == "a__y", "which could be nobody else's"
        for one in (client, later):
            assert await called(one, early) == "a_: x"
            got = await one.call("prompts/get", {"name": prompt})
            assert got["messages"][0]["content"]["text"] == "a_: p"
            assert (await refused(one, "tools/call", {"name": "a___x"})).code == -32602


async def test_a_name_is_the_same_on_every_endpoint(connect, autojump_clock):
    backends = Backend("a", tools=("_x",)), Backend("a_", tools=("x",))
    async with open_gateway(*backends, groups={"one": ("a",), "other": ("a_",)}) as gateway:
        merged = await names(await connect(gateway))
        assert merged == [*await names(await connect(gateway, "one")), *await names(await connect(gateway, "other"))]


async def test_when_another_server_makes_a_name_ambiguous_its_users_are_told(autojump_clock):
    a, a_ = Backend("a", tools=("_x",)), Backend("a_", tools=("x",))
    async with open_gateway(a, a_, groups={"one": ("a",)}) as gateway:
        both = gateway.services.table.value.backends
        gateway.change(backends={"a": a.spec})
        client = await gateway.connect("one")
        events = client.listen()
        assert await client.names() == ["a___x"]
        gateway.change(backends=both)
        await events.next("notifications/tools/list_changed")
        [changed] = await client.names()
        assert changed != "a___x"
        assert await client.tool(changed) == "a: _x"


async def test_a_web_address_is_of_the_first_server_that_lists_it_also_if_that_was_away(connect, make, autojump_clock):
    page = "https://example.com/a"
    a, b = make("a", resources=(page,)), make("b", resources=(page,))
    async with open_gateway(a, b) as gateway:
        a.down = True
        client = await connect(gateway)
        assert await names(client, "resources/list", "uri") == [page]
        a.down = False
        read = await client.call("resources/read", {"uri": page})
        assert read["contents"][0]["text"].startswith("a:")
        assert b.asked_for("resources/read") == []


async def test_a_web_address_can_be_read_while_a_server_is_down(connect, make, autojump_clock):
    gone, b = make("gone"), make("b", resources=("https://example.com/a",))
    async with open_gateway(gone, b) as gateway:
        gone.down = True
        read = await (await connect(gateway)).call("resources/read", {"uri": "https://example.com/a"})
        assert read["contents"][0]["text"].startswith("b:")


# Names that are unknown


UNKNOWN = ["b__nothing", "nothing", "nobody__echo", "b__", "__", ""]


@pytest.mark.parametrize("name", UNKNOWN)
async def test_an_unknown_name_is_minus_32602_and_blames_nobody_also_while_a_server_is_down(
    connect, make, autojump_clock, name
):
    gone, b = make("gone"), make("b")
    gone.down = True
    async with open_gateway(gone, b) as gateway:
        client = await connect(gateway)
        ref = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}}
        for method, params in (
            ("tools/call", {"name": name, "arguments": {}}),
            ("prompts/get", {"name": name}),
            ("completion/complete", ref),
        ):
            error = await refused(client, method, params)
            assert error.code == -32602
            assert "gone" not in error.message
            assert not error.data
        assert await called(client, "b__echo") == "b: echo"


@pytest.mark.parametrize("uri", ["nobody+test:///a", "test:///a", "https://example.com/a", "ui://page"])
async def test_an_unknown_resource_blames_nobody_also_while_a_server_is_down(connect, make, autojump_clock, uri):
    gone, b = make("gone"), make("b")
    gone.down = True
    async with open_gateway(gone, b) as gateway:
        error = await refused(await connect(gateway), "resources/read", {"uri": uri})
        assert error.code in (-32002, -32602)
        assert "gone" not in error.message


async def test_the_server_whose_prefix_a_name_has_is_blamed_if_it_can_not_be_asked(connect, make, autojump_clock):
    gone, dead, b = make("gone"), make("dead"), make("b")
    gone.down = dead.down = True
    async with open_gateway(gone, dead, b) as gateway:
        client = await connect(gateway)
        ref = {"ref": {"type": "ref/prompt", "name": "dead__p"}, "argument": {"name": "a", "value": ""}}
        for method, params in (
            ("tools/call", {"name": "dead__x", "arguments": {}}),
            ("prompts/get", {"name": "dead__p"}),
            ("completion/complete", ref),
        ):
            error = await refused(client, method, params)
            assert error.code == -32603
            assert "'dead'" in error.message
            assert error.data["backend"] == "dead"
            assert error.data["executed"] == "no"


# Bare names


async def test_a_bare_name_is_the_tool_of_the_only_server_that_has_it(connect, make, autojump_clock):
    a, b = make("a", tools=("same", "refresh")), make("b", tools=("same", "other"))
    async with open_gateway(a, b) as gateway:
        client = await connect(gateway)
        assert await called(client, "refresh") == "a: refresh"
        assert await called(client, "other") == "b: other"
        assert [r.params["name"] for r in a.asked_for("tools/call")] == ["refresh"]


async def test_a_bare_name_that_several_servers_have_is_an_error_that_names_all_of_them(connect, make, autojump_clock):
    several = [make(name, tools=("same",)) for name in ("a", "b", "c.d")]
    async with open_gateway(*several) as gateway:
        error = await refused(await connect(gateway), "tools/call", {"name": "same", "arguments": {}})
        assert error.code == -32602
        assert all(name in error.message for name in ("a__same", "b__same", "c_d__same"))
        assert not any(backend.asked_for("tools/call") for backend in several)


async def test_hidden_tools_and_other_endpoints_do_not_count_for_bare_names(connect, make, autojump_clock):
    a, b = make("a", tools=("same", "secret"), disabled_tools=("s*",)), make("b", tools=("same",))
    c = make("c", tools=("same",))
    async with open_gateway(a, b, c, groups={"pair": ("a", "b")}) as gateway:
        client = await connect(gateway, "pair")
        assert await called(client, "same") == "b: same"
        assert (await refused(client, "tools/call", {"name": "secret", "arguments": {}})).code == -32602


async def test_an_exposed_name_goes_before_a_bare_one(connect, make, autojump_clock):
    a, b = make("a", tools=("x",)), make("b", tools=("a__x", "a__y"))
    async with open_gateway(a, b) as gateway:
        client = await connect(gateway)
        assert await called(client, "a__x") == "a: x"
        assert (await refused(client, "tools/call", {"name": "a__y", "arguments": {}})).code == -32602
        a.down = True
        await gateway.settle()
        assert await called(client, "b__a__x") == "b: a__x"


async def test_a_bare_name_waits_for_servers_that_have_not_said_what_they_have(connect, make, autojump_clock):
    a, b = make("a", tools=("same",)), make("b", tools=("same",), mute={"tools/list"})
    async with open_gateway(a, b) as gateway:
        client = await connect(gateway)
        pending = client.begin("tools/call", {"name": "same", "arguments": {}})
        asked = await b.next("tools/list")
        asked.result({"tools": [tool("same")], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
        with pytest.raises(RpcError, match="a__same, b__same"):
            await pending.result()
        assert a.asked_for("tools/call") == []


async def test_a_bare_name_can_be_called_while_a_server_is_down(connect, make, autojump_clock):
    a, gone = make("a", tools=("refresh",)), make("gone")
    gone.down = True
    async with open_gateway(a, gone) as gateway:
        assert await called(await connect(gateway), "refresh") == "a: refresh"
