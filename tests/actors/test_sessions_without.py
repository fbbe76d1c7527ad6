"""A client with a session in front of a server that has none: it can't tell, but for what the server can't do."""

import pytest
import trio

from actors.ports import Principal
from tests.actors.test_cold_start import Disk
from tests.support.door_client import RpcError
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend, tool
from tests.support.modern_backend import ModernBackend, needs

MAY_ALL = {"sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
KINDS = pytest.mark.parametrize("kind", ["stdio", "http"])


@KINDS
async def test_a_merged_endpoint_serves_servers_of_both_eras(autojump_clock, kind):
    alpha, beta = ModernBackend("alpha", kind=kind), Backend("beta", kind=kind)
    async with open_gateway(alpha, beta) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["alpha__echo", "beta__echo"]
        assert await client.tool("alpha__echo", text="hi") == "alpha: hi"
        assert await client.tool("beta__echo", text="hi") == "beta: hi"
        read = await client.call("resources/read", {"uri": "alpha+test:///a"})
        assert read["contents"][0]["text"] == "alpha: test:///a"
        assert "resultType" not in read
        assert set(alpha.methods) >= {"initialize", "server/discover", "tools/list", "tools/call"}


@KINDS
async def test_an_endpoint_of_one_server_is_that_server(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, welcome={"instructions": "be kind"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        assert client.server["protocolVersion"] == "2025-11-25"
        assert client.server["serverInfo"]["name"] == "alpha"
        assert client.server["instructions"] == "be kind"
        assert not {"supportedVersions", "ttlMs", "resultType"} & client.server.keys()
        assert await client.names() == ["echo"]
        assert await client.tool("echo", text="hi") == "alpha: hi"


@KINDS
async def test_what_is_known_of_a_server_is_not_asked_again(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind)
    async with open_gateway(alpha) as gateway:
        for _ in range(3):
            client = await gateway.connect("alpha")
            await client.tool("echo")
        assert alpha.methods.count("initialize") == 1
        assert alpha.methods.count("server/discover") == 1


@KINDS
async def test_a_server_of_both_eras_is_used_with_sessions(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, sessions=True)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        assert await client.tool("echo") == "alpha: echo"
        assert "server/discover" not in alpha.methods


@KINDS
async def test_a_server_that_speaks_neither_era_fails_its_calls_and_no_more(autojump_clock, kind):
    alpha = Backend("alpha", kind=kind)
    alpha.came = lambda request: request.error(-32601, "Method not found")
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect()
        assert await client.names() == ["beta__echo"]
        with pytest.raises(RpcError) as refused:
            await client.tool("alpha__echo")
        assert refused.value.code in (-32602, -32603)
        with pytest.raises(RpcError) as refused:
            await gateway.connect("alpha")
        assert refused.value.code == -32603


@KINDS
async def test_a_server_that_was_slow_to_answer_the_probe_is_asked_once_more(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, mute={"server/discover"}, refusal=-32022)
    async with open_gateway(alpha) as gateway:
        pending = gateway.client("alpha")
        gateway.nursery.start_soon(pending.initialize)
        await trio.sleep(2)
        assert alpha.methods.count("server/discover") == 1
        alpha.mute = set()
        await trio.sleep(10)
        assert pending.server["serverInfo"]["name"] == "alpha"


@KINDS
async def test_a_server_that_was_down_in_both_eras_is_found_by_whoever_comes_next(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, mute={"server/discover"})
    async with open_gateway(alpha) as gateway:
        with pytest.raises(RpcError):
            await gateway.connect("alpha")
        alpha.mute = set()
        client = await gateway.connect("alpha")
        assert await client.tool("echo") == "alpha: echo"


@KINDS
async def test_questions_are_asked_on_the_stream_of_their_call(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        request = await alpha.next()
        declared = request.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert declared["elicitation"] == {"form": {}, "url": {}}
        needs(
            request,
            "s",
            form={"method": "elicitation/create", "params": {"mode": "form", **FORM}},
            roots={"method": "roots/list"},
        )
        question = await call.next("elicitation/create")
        assert question["params"]["message"] == "[alpha] Who?"
        await client.respond(question, {"action": "accept", "content": {"name": "Ada"}})
        await client.respond(await call.next("roots/list"), {"roots": []})
        again = await alpha.next()
        assert again.params["requestState"] == "s"
        assert again.params["inputResponses"] == {
            "form": {"action": "accept", "content": {"name": "Ada"}},
            "roots": {"roots": []},
        }
        again.text("done")
        assert (await call.result())["content"][0]["text"] == "done"


@KINDS
async def test_a_url_is_opened_once_and_its_end_is_told(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, tools=("ask",), held={"ask"})
    url = {"method": "elicitation/create", "params": {"mode": "url", "message": "sign in", "url": "https://a.test/"}}
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        needs(await alpha.next(), "1", go=url)
        question = await call.next("elicitation/create")
        await client.respond(question, {"action": "accept"})
        needs(await alpha.next(), "2", go=url)
        again = await alpha.next()
        assert again.params["inputResponses"] == {"go": {"action": "accept"}}
        again.text("done")
        await call.result()
        told = call.seen("notifications/elicitation/complete")
        assert [t["params"]["elicitationId"] for t in told] == [question["params"]["elicitationId"]]
        assert len(call.seen("elicitation/create")) == 1


@KINDS
async def test_a_refusal_ends_the_call_in_words_that_a_model_reads(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        needs(await alpha.next(), one={"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
        await client.respond(await call.next("sampling/createMessage"), code=-1, message="rejected")
        result = await call.result()
        assert result["isError"]
        assert alpha.methods.count("tools/call") == 1


@KINDS
async def test_progress_and_logs_belong_to_their_call(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, tools=("slow",), held={"slow"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.call("logging/setLevel", {"level": "info"})
        call = client.begin("tools/call", {"name": "alpha__slow"}, progress="mine")
        request = await alpha.next()
        assert request.params["_meta"]["io.modelcontextprotocol/logLevel"] == "info"
        request.progress(1)
        request.log("working")
        assert (await call.next("notifications/progress"))["params"] == {"progressToken": "mine", "progress": 1}
        assert (await call.next("notifications/message"))["params"]["data"] == "working"
        request.text("done")
        await call.result()


async def test_a_level_that_was_not_chosen_is_not_sent(autojump_clock):
    alpha = ModernBackend("alpha")
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        await client.tool("alpha__echo")
        [request] = alpha.asked_for("tools/call")
        assert "io.modelcontextprotocol/logLevel" not in request.params["_meta"]


@KINDS
async def test_a_cancel_reaches_the_server(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, tools=("slow",), held={"slow"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect()
        call = client.begin("tools/call", {"name": "alpha__slow"})
        request = await alpha.next()
        await client.cancel(call)
        await gateway.settle()
        assert request.id in request.upstream.transport.forgotten


@KINDS
async def test_a_cancelled_call_takes_its_question_back(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, tools=("ask",), held={"ask"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect(capabilities=MAY_ALL)
        call = client.begin("tools/call", {"name": "alpha__ask"})
        needs(await alpha.next(), "s", form={"method": "elicitation/create", "params": FORM})
        question = await call.next("elicitation/create")
        await client.cancel(call)
        withdrawn = await call.next("notifications/cancelled")
        assert withdrawn["params"]["requestId"] == question["id"]
        await gateway.settle()
        assert alpha.methods.count("tools/call") == 1


@KINDS
async def test_updates_come_to_who_is_subscribed(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind)
    async with open_gateway(alpha) as gateway:
        one, other = await gateway.connect("alpha"), await gateway.connect("alpha")
        streams = one.listen(), other.listen()
        await one.call("resources/subscribe", {"uri": "test:///a"})
        assert alpha.change("notifications/resources/updated", "test:///a") == 1
        updated = await streams[0].next("notifications/resources/updated")
        assert updated["params"] == {"uri": "test:///a"}
        await trio.sleep(1)
        assert not streams[1].seen("notifications/resources/updated")
        await one.call("resources/unsubscribe", {"uri": "test:///a"})
        assert alpha.change("notifications/resources/updated", "test:///a") == 0


@KINDS
async def test_changes_of_lists_come_to_all_once(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind)
    async with open_gateway(alpha) as gateway:
        clients = [await gateway.connect("alpha") for _ in range(2)]
        streams = [client.listen() for client in clients]
        await gateway.settle()
        assert alpha.change("notifications/tools/list_changed") == 1
        for stream in streams:
            await stream.next("notifications/tools/list_changed")
        await trio.sleep(1)
        assert [len(stream.seen("notifications/tools/list_changed")) for stream in streams] == [1, 1]


@KINDS
async def test_a_change_of_a_list_reaches_a_merged_endpoint(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind)
    async with open_gateway(alpha, Backend("beta")) as gateway:
        client = await gateway.connect()
        stream = client.listen()
        assert await client.names() == ["alpha__echo", "beta__echo"]
        alpha.lists["tools/list"].append({"name": "more", "inputSchema": {"type": "object"}})
        assert alpha.change("notifications/tools/list_changed") >= 1
        await stream.next("notifications/tools/list_changed")
        assert await client.names() == ["alpha__echo", "alpha__more", "beta__echo"]


async def test_a_dead_process_is_an_error_and_comes_back(autojump_clock):
    alpha = ModernBackend("alpha", tools=("slow", "echo"), held={"slow"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("tools/call", {"name": "slow"})
        (await alpha.next()).upstream.die()
        error = await call.error()
        assert (error.code, error.data["executed"]) == (-32603, "unknown")
        assert await client.tool("echo") == "alpha: echo"


@KINDS
async def test_a_missing_resource_has_the_code_of_the_session_s_era(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, mute={"resources/read"})
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        call = client.begin("resources/read", {"uri": "test:///none"})
        (await alpha.next("resources/read")).error(-32602, "no such resource", {"uri": "test:///none"})
        assert (await call.error()).code == -32002


@KINDS
async def test_what_one_user_may_see_is_not_shown_to_another(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind, mute={"resources/read"})
    async with open_gateway(alpha) as gateway:
        texts = []
        for name in ("alice", "alice", "bob"):
            client = await gateway.connect("alpha", Principal(name))
            call = client.begin("resources/read", {"uri": "test:///a"})
            with trio.move_on_after(1):
                request = await alpha.next("resources/read")
                hints = {"ttlMs": 60_000, "cacheScope": "private"}
                request.result({"contents": [{"uri": "test:///a", "text": f"for {name}"}], **hints})
            texts.append((await call.result())["contents"][0]["text"])
        assert texts == ["for alice", "for alice", "for bob"]
        assert alpha.methods.count("resources/read") == 2


async def test_sessions_of_nobody_in_particular_share_no_private_answers(autojump_clock):
    alpha = ModernBackend("alpha")
    hints = {"ttlMs": 60_000, "cacheScope": "private"}
    alpha.results["resources/read"] = lambda request: {"contents": [], **hints}
    async with open_gateway(alpha) as gateway:
        for _ in range(2):
            client = await gateway.connect("alpha")
            await client.call("resources/read", {"uri": "test:///a"})
        assert alpha.methods.count("resources/read") == 2


@KINDS
async def test_a_rebuilt_session_is_subscribed_again(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind)
    async with open_gateway(alpha) as gateway:
        client = await gateway.connect("alpha")
        await client.call("resources/subscribe", {"uri": "test:///a"})
        [session] = gateway.actors.sessions.table.values()
        session.ref.stop()
        await gateway.settle()
        stream = client.listen()
        await client.tool("echo")
        await trio.sleep(1)
        assert alpha.change("notifications/resources/updated", "test:///a") == 1
        assert await stream.next("notifications/resources/updated")


@KINDS
async def test_nothing_is_left_of_sessions_that_have_ended(autojump_clock, kind):
    alpha = ModernBackend("alpha", kind=kind)
    async with open_gateway(alpha, link_idle=5) as gateway:
        before = gateway.left()
        client = await gateway.connect()
        await client.tool("alpha__echo")
        await client.call("resources/subscribe", {"uri": "alpha+test:///a"})
        assert await client.delete() in (200, 204)
        await trio.sleep(120)
        assert gateway.left() == before
        assert not alpha.open
        assert not alpha.live


@KINDS
@pytest.mark.parametrize("prestart", [False, True])
async def test_a_list_for_clients_that_can_be_asked_is_not_that_of_others(autojump_clock, kind, prestart):
    alpha = ModernBackend("alpha", kind=kind)

    def listed(request):
        declared = request.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        return {"tools": [tool("echo"), *([tool("asks")] if declared else [])], **alpha.hints}

    alpha.results["tools/list"] = listed
    async with open_gateway(alpha, lists=Disk(), prestart=prestart) as gateway:
        await trio.sleep(5)
        ann = await gateway.connect(principal=Principal("ann"), capabilities={"sampling": {}})
        events = ann.listen()
        await ann.names()
        await trio.sleep(5)
        events.messages.clear()
        bob = await gateway.connect(principal=Principal("bob"))
        for _ in range(2):
            assert await ann.names() == ["alpha__echo", "alpha__asks"]
            assert await bob.names() == ["alpha__echo"]
            for client in (ann, bob):
                await client.tool("alpha__echo")
            await trio.sleep(5)
        assert events.messages == []
