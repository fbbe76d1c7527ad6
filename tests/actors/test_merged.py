"""Several backends under one roof: names, order, filters, pages, and where each request goes."""

import json

import pytest
import trio

from actors.ports import Principal
from tests.support.door_client import Client, RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend, resource, tool


async def refused(client: Client, method: str, params: dict) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await client.call(method, params)
    return caught.value


# Names and order ----------------------------------------------------------------------------------------------


async def test_items_come_in_the_order_of_the_backends_and_within_each_in_its_own(autojump_clock):
    zeta, alpha = Backend("zeta", tools=("b", "a")), Backend("alpha", tools=("d", "c"))
    async with open_gateway(zeta, alpha) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["zeta__b", "zeta__a", "alpha__d", "alpha__c"]


async def test_everything_else_in_an_item_stays_as_it_is(autojump_clock):
    odd = tool("t", title="Ä title", _meta={"x": 1}, future={"deep": [1.50, None]}, annotations={"readOnlyHint": True})
    async with open_gateway(Backend("alpha", tools=(odd,))) as gateway:
        client = await gateway.connect()
        [listed] = (await client.call("tools/list"))["tools"]
        assert listed == {**odd, "name": "alpha__t"}


async def test_names_that_would_be_too_long_or_illegal_can_be_called_by_what_was_listed(autojump_clock):
    names = ("x" * 100, "has space", "has.dot", "has__sep", "ünïcode")
    async with open_gateway(Backend("alpha", tools=names)) as gateway:
        client = await gateway.connect()
        exposed = await client.names()
        assert len(set(exposed)) == len(names)
        assert all(len(name) <= 64 for name in exposed)
        assert [await client.tool(name) for name in exposed] == [f"alpha: {name}" for name in names]


async def test_of_two_tools_with_one_name_the_first_counts(autojump_clock):
    twice = (tool("same", title="first"), tool("same", title="second"), tool("other"))
    async with open_gateway(Backend("alpha", tools=twice)) as gateway:
        client = await gateway.connect()
        tools = (await client.call("tools/list"))["tools"]
        assert [(t["name"], t.get("title")) for t in tools] == [("alpha__same", "first"), ("alpha__other", None)]


async def test_a_group_holds_its_backends_and_no_others(autojump_clock):
    backends = [Backend(name) for name in ("alpha", "beta", "gamma")]
    async with open_gateway(*backends, groups={"pair": ("gamma", "alpha")}) as gateway:
        client = await gateway.connect("pair")
        assert await client.names() == ["gamma__echo", "alpha__echo"]
        error = await refused(client, "tools/call", {"name": "beta__echo"})
        assert error.code == -32602
        assert backends[1].upstreams == []


# Filters ------------------------------------------------------------------------------------------------------


async def test_what_a_filter_hides_is_neither_listed_nor_callable(autojump_clock):
    alpha = Backend(
        "alpha", tools=("get_a", "get_b", "set_a"), enabled_tools=("get_*",), disabled_tools=("*_b",), held={"x"}
    )
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["alpha__get_a"]
        for hidden in ("alpha__get_b", "alpha__set_a"):
            assert (await refused(client, "tools/call", {"name": hidden})).code == -32602
        assert await client.tool("alpha__get_a") == "alpha: get_a"
        assert [r.params["name"] for r in alpha.asked_for("tools/call")] == ["get_a"]


async def test_no_tool_is_enabled_by_an_empty_list(autojump_clock):
    async with open_gateway(Backend("alpha", enabled_tools=())) as gateway:
        client = await gateway.connect()
        assert await client.names() == []


# Pages --------------------------------------------------------------------------------------------------------


async def test_a_long_list_comes_in_pages_of_a_thousand(autojump_clock):
    alpha = Backend("alpha", tools=[f"t{n}" for n in range(1500)], page=70)
    beta = Backend("beta", tools=[f"t{n}" for n in range(1200)])
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        first = await client.call("tools/list")
        assert len(first["tools"]) == 1000
        names = await client.names()
        assert names == [f"alpha__t{n}" for n in range(1500)] + [f"beta__t{n}" for n in range(1200)]
        assert await client.tool("alpha__t1499") == "alpha: t1499"


async def test_a_backends_empty_cursor_is_a_cursor(autojump_clock):
    def pages(request):
        match request.params.get("cursor"):
            case None:
                return {"tools": [tool("one")], "nextCursor": ""}
            case "":
                return {"tools": [], "nextCursor": "3"}
            case "3":
                return {"tools": [tool("three")]}

    alpha = Backend("alpha")
    alpha.results["tools/list"] = pages
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["alpha__one", "alpha__three"]


async def test_a_list_that_never_ends_is_cut_off(autojump_clock):
    alpha = Backend("alpha")
    alpha.results["tools/list"] = lambda r: {
        "tools": [tool(f"t{r.params.get('cursor', '0')}")],
        "nextCursor": str(int(r.params.get("cursor", "0")) + 1),
    }
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert len(await client.names()) == 100


async def test_a_cursor_is_good_for_its_list_its_method_and_its_principal_only(autojump_clock):
    many = [f"t{n}" for n in range(1001)]
    alpha = Backend("alpha", tools=many, prompts=many)
    async with open_gateway(alpha, Backend("beta"), groups={"other": ("alpha", "beta")}) as gateway:
        ann = await gateway.connect(principal=Principal("ann"))
        cursor = (await ann.call("tools/list"))["nextCursor"]
        assert [t["name"] for t in (await ann.call("tools/list", {"cursor": cursor}))["tools"]] == [
            "alpha__t1000",
            "beta__echo",
        ]
        bob = await gateway.connect(principal=Principal("bob"))
        await bob.call("tools/list")
        group = await gateway.connect("other", Principal("ann"))
        await group.call("tools/list")
        for client, method, token in (
            (ann, "tools/list", ("A" if cursor[0] != "A" else "B") + cursor[1:]),
            (ann, "tools/list", "1000"),
            (ann, "tools/list", ""),
            (ann, "tools/list", 7),
            (ann, "prompts/list", cursor),
            (bob, "tools/list", cursor),
            (group, "tools/list", cursor),
        ):
            assert (await refused(client, method, {"cursor": token})).code == -32602
        alpha.lists["tools/list"].append(tool("more"))
        alpha.upstream.notify("notifications/tools/list_changed")
        for upstream in alpha.upstreams:
            upstream.notify("notifications/tools/list_changed")
        await gateway.settle()
        assert (await refused(ann, "tools/list", {"cursor": cursor})).code == -32602


async def test_a_page_that_fails_does_not_shorten_a_list_that_was_known_whole(autojump_clock):
    alpha = Backend("alpha", tools=[f"t{n}" for n in range(10)], page=4)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert len(await client.names()) == 10
        alpha.upstream.notify("notifications/tools/list_changed")
        alpha.mute.add("tools/list")
        asked = client.begin("tools/list")
        first = await alpha.next("tools/list")
        while first.params.get("cursor") is not None or first.upstream.backend.asked_for("tools/list")[-1] is not first:
            first = await alpha.next("tools/list")
        first.result({"tools": [tool("t0")], "nextCursor": "x"})
        (await alpha.next("tools/list")).error(-32603, "broken")
        assert len((await asked.result())["tools"]) == 10


async def test_items_that_are_none_are_left_out(autojump_clock):
    alpha = Backend("alpha")
    alpha.results["tools/list"] = lambda r: {"tools": [tool("good"), 7, None, {"nameless": True}, {"name": 5}, "x"]}
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["alpha__good"]


@pytest.mark.parametrize("result", [{"tools": None}, {"tools": {}}, {}, {"tools": [], "nextCursor": 5}])
async def test_a_list_of_an_unexpected_shape_harms_nobody(autojump_clock, result):
    alpha = Backend("alpha")
    alpha.results["tools/list"] = lambda r: result
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["beta__echo"]


# Where requests go --------------------------------------------------------------------------------------------


async def test_a_name_learned_in_another_session_can_be_called_without_a_list(autojump_clock):
    alpha, beta = Backend("alpha"), Backend("beta")
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        assert await client.tool("beta__echo", text="hi") == "beta: hi"
        result = await client.call("prompts/get", {"name": "alpha__hello"})
        assert result["messages"][0]["content"]["text"] == "alpha: hello"


async def test_a_tool_that_is_new_can_be_called_before_anybody_heard_of_the_change(autojump_clock):
    alpha = Backend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.names()
        alpha.lists["tools/list"].append(tool("fresh"))
        alpha.upstream.notify("notifications/tools/list_changed")
        assert await client.tool("alpha__fresh") == "alpha: fresh"


@pytest.mark.parametrize("name", ["alpha__nothing", "nothing", "nobody__echo", "alpha__", "__", ""])
async def test_an_unknown_tool_or_prompt_is_minus_32602(autojump_clock, name):
    async with open_gateway(Backend("alpha")) as gateway:
        client = await gateway.connect()
        assert (await refused(client, "tools/call", {"name": name})).code == -32602
        assert (await refused(client, "prompts/get", {"name": name})).code == -32602
        ref = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}}
        assert (await refused(client, "completion/complete", ref)).code == -32602


@pytest.mark.parametrize("params", [{}, {"name": 5}, {"name": None}, {"name": ["alpha__echo"]}])
async def test_a_call_without_a_name_is_minus_32602(autojump_clock, params):
    async with open_gateway(Backend("alpha")) as gateway:
        client = await gateway.connect()
        assert (await refused(client, "tools/call", params)).code == -32602


async def test_a_call_that_is_cancelled_while_its_name_is_looked_for_is_never_made(autojump_clock):
    alpha = Backend("alpha", mute={"tools/list"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__echo"})
        request = await alpha.next("tools/list")
        await client.cancel(call)
        request.result({"tools": [tool("echo")]})
        await gateway.settle()
        assert (await call.error()).code == -32800
        assert alpha.asked_for("tools/call") == []


async def test_two_backends_may_use_the_same_ids_and_names_at_the_same_time(autojump_clock):
    alpha, beta = (Backend(n, tools=("same",), held={"same"}) for n in ("alpha", "beta"))
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect(capabilities={"roots": {}, "sampling": {}})
        calls = [client.begin("tools/call", {"name": f"{n}__same"}) for n in ("alpha", "beta")]
        requests = [await alpha.next(), await beta.next()]
        asked = [request.ask("sampling/createMessage", {"messages": [], "maxTokens": 1}, id=1) for request in requests]
        for n, call in enumerate(calls):
            question = await call.next("sampling/createMessage")
            await client.respond(question, {"role": "assistant", "content": {"type": "text", "text": str(n)}})
        for n, one in enumerate(asked):
            assert (await one.outcome())["result"]["content"]["text"] == str(n)
        requests[1].text("two")
        requests[0].text("one")
        assert [(await c.result())["content"][0]["text"] for c in calls] == ["one", "two"]


# Resources ----------------------------------------------------------------------------------------------------


async def test_uris_are_prefixed_and_lead_back_templates_and_concrete_ones_too(autojump_clock):
    alpha = Backend("My_Files", resources=("test:///a", "plain"), templates=("test:///{path}", "{+all}"))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        assert await client.names("resources/list", "uri") == ["my-files+test:///a", "my-files:plain"]
        assert await client.names("resources/templates/list", "uriTemplate") == [
            "my-files+test:///{path}",
            "my-files+{+all}",
        ]
        for exposed, own in (
            ("my-files+test:///a", "test:///a"),
            ("MY-FILES+test:///x/y?z=1", "test:///x/y?z=1"),
            ("my-files:plain", "plain"),
        ):
            read = await client.call("resources/read", {"uri": exposed})
            assert read["contents"][0]["text"] == f"My_Files: {own}"
            assert read["contents"][0]["uri"].lower() == exposed.lower()


async def test_web_addresses_keep_their_form_and_are_found_by_the_lists(autojump_clock):
    alpha = Backend("alpha", resources=("https://example.com/a",))
    beta = Backend("beta", templates=("https://example.org/docs/{page}",))
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        read = await client.call("resources/read", {"uri": "https://example.com/a"})
        assert read["contents"][0]["text"] == "alpha: https://example.com/a"
        read = await client.call("resources/read", {"uri": "https://example.org/docs/7"})
        assert read["contents"][0]["text"] == "beta: https://example.org/docs/7"
        error = await refused(client, "resources/read", {"uri": "https://example.net/"})
        assert error.code == -32002
        assert error.data["uri"] == "https://example.net/"


async def test_a_web_address_that_two_backends_list_is_listed_once_and_read_from_the_first(autojump_clock):
    both = [Backend(n, resources=("https://example.com/a",)) for n in ("alpha", "beta")]
    async with open_gateway(*both) as gateway:
        client = await gateway.connect()
        assert await client.names("resources/list", "uri") == ["https://example.com/a"]
        read = await client.call("resources/read", {"uri": "https://example.com/a"})
        assert read["contents"][0]["text"].startswith("alpha")


async def test_pages_of_apps_keep_their_scheme_and_name_the_backend_in_the_path(autojump_clock):
    page = tool("chart", _meta={"ui": {"resourceUri": "ui://chart/page.html"}})
    alpha = Backend("alpha", tools=(page,), resources=(resource("ui://chart/page.html"),))
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        [listed] = (await client.call("tools/list"))["tools"]
        uri = listed["_meta"]["ui"]["resourceUri"]
        assert uri == "ui://alpha/chart/page.html"
        assert await client.names("resources/list", "uri") == [uri]
        read = await client.call("resources/read", {"uri": uri})
        assert read["contents"][0]["text"] == "alpha: ui://chart/page.html"


async def test_links_and_embedded_resources_in_results_are_prefixed(autojump_clock):
    alpha = Backend("alpha")
    alpha.results["tools/call"] = lambda r: {
        "content": [
            {"type": "resource_link", "uri": "test:///x", "name": "x"},
            {"type": "resource", "resource": {"uri": "test:///y", "text": "test:///y"}},
            {"type": "text", "text": "test:///z"},
        ],
        "structuredContent": {"uri": "test:///s"},
    }
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        result = await client.call("tools/call", {"name": "alpha__echo"})
        upstream, embedded, text = result["content"]
        assert upstream["uri"] == "alpha+test:///x"
        assert embedded["resource"] == {"uri": "alpha+test:///y", "text": "test:///y"}
        assert text["text"] == "test:///z"
        assert result["structuredContent"] == {"uri": "test:///s"}


async def test_updates_reach_the_subscriber_also_for_a_part_of_what_it_subscribed_to(autojump_clock):
    alpha = Backend("alpha", templates=("test:///{x}",))
    async with open_gateway(alpha) as gateway:
        client, other = await gateway.connect(), await gateway.connect()
        events, others = client.listen(), other.listen()
        await client.call("resources/subscribe", {"uri": "alpha+test:///dir"})
        assert alpha.asked_for("resources/subscribe")[0].params["uri"] == "test:///dir"
        alpha.upstream.notify("notifications/resources/updated", {"uri": "test:///dir/part"})
        update = await events.next("notifications/resources/updated")
        assert update["params"]["uri"] == "alpha+test:///dir/part"
        await client.call("resources/unsubscribe", {"uri": "alpha+test:///dir"})
        assert alpha.asked_for("resources/unsubscribe")[0].params["uri"] == "test:///dir"
        await trio.sleep(1)
        assert others.messages == []


# Completion ---------------------------------------------------------------------------------------------------


async def test_completion_goes_by_the_ref_and_is_empty_for_a_backend_without(autojump_clock):
    alpha = Backend("alpha", templates=("test:///{x}",))
    beta = Backend("beta", capabilities={"prompts": {}})
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()

        async def complete(ref: dict) -> list[str]:
            params = {"ref": ref, "argument": {"name": "x", "value": "v"}, "context": {"arguments": {"y": "1"}}}
            return (await client.call("completion/complete", params))["completion"]["values"]

        assert await complete({"type": "ref/prompt", "name": "alpha__hello"}) == ["alpha"]
        assert await complete({"type": "ref/resource", "uri": "alpha+test:///{x}"}) == ["alpha"]
        sent = [r.params["ref"] for r in alpha.asked_for("completion/complete")]
        assert sent == [{"type": "ref/prompt", "name": "hello"}, {"type": "ref/resource", "uri": "test:///{x}"}]
        assert await complete({"type": "ref/prompt", "name": "beta__hello"}) == []
        assert beta.asked_for("completion/complete") == []


# Instructions -------------------------------------------------------------------------------------------------


async def test_instructions_are_merged_under_a_heading_for_each_backend(autojump_clock):
    alpha = Backend("alpha", welcome={"instructions": "Use echo."})
    beta = Backend("beta", welcome={"instructions": "# Do not."})
    async with open_gateway(alpha, beta) as gateway:
        await (await gateway.connect()).names()
        client = await gateway.connect()
        text = client.server["instructions"]
        assert text.index("# alpha") < text.index("Use echo.") < text.index("# beta") < text.index("## Do not.")
        assert client.server["serverInfo"] == json.loads('{"name":"stagedoor","version":"test"}')
