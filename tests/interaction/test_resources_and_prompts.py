"""Resources, templates, subscriptions, prompts and completion (2025-11-25 server/resources, prompts, completion)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.interaction.backend import Backend, Request, text
from tests.interaction.cells import JUMPING
from tests.interaction.codes import INVALID_PARAMS, METHOD_NOT_FOUND, NOT_FOUND
from tests.interaction.stage import Cell, Route, Stage
from tests.support.wire_client import Message, RpcError

RESOURCE = {
    "uri": "file:///a/b%20c.txt",
    "name": "b c",
    "title": "B",
    "description": "d",
    "mimeType": "text/plain",
    "size": 7,
    "annotations": {"audience": ["assistant"], "priority": 1, "lastModified": "2025-01-12T15:00:58Z"},
    "_meta": {"com.example/x": 1},
    "x-unknown": 1,
}
TEMPLATE = {"uriTemplate": "db://{table}/rows/{id}{?fields*}", "name": "row", "mimeType": "application/json"}


def library(backend: Backend) -> Backend:
    """A backend with a resource, a template, and all that goes with them."""
    backend.add("resources", RESOURCE)
    backend.add("resourceTemplates", TEMPLATE)

    @backend.on("resources/read")
    async def read(request: Request) -> Message:
        uri = request.params["uri"]
        if not uri.startswith(("file:///a/", "db://")):
            raise RpcError({"code": NOT_FOUND, "message": "no such resource", "data": {"uri": uri}})
        whole = {"uri": uri, "mimeType": "text/plain", "text": f"content of {uri}", "_meta": {"k": 1}}
        return {"contents": [whole, {"uri": uri + "/part", "blob": "AAEC"}], "_meta": {"com.example/r": 1}}

    backend.answers("resources/subscribe", {})
    backend.answers("resources/unsubscribe", {})
    return backend


# Resources ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("resources-list")
async def test_resources_and_templates_are_listed(stage: Stage, route: Route) -> None:
    library(await stage.backend())
    client = await stage.connect(route.path)
    listed = await client.request("resources/list")
    assert listed == {"resources": [{**RESOURCE, "uri": route.uri(str(RESOURCE["uri"]))}]}
    templates = await client.request("resources/templates/list")
    assert templates == {"resourceTemplates": [{**TEMPLATE, "uriTemplate": route.uri(str(TEMPLATE["uriTemplate"]))}]}


@pytest.mark.requirement("resources-read")
async def test_a_resource_is_read_with_all_its_contents(stage: Stage, route: Route) -> None:
    library(await stage.backend())
    client = await stage.connect(route.path)
    uri = str(RESOURCE["uri"])
    assert await client.request("resources/read", {"uri": route.uri(uri)}) == {
        "contents": [
            {"uri": route.uri(uri), "mimeType": "text/plain", "text": f"content of {uri}", "_meta": {"k": 1}},
            {"uri": route.uri(uri + "/part"), "blob": "AAEC"},
        ],
        "_meta": {"com.example/r": 1},
    }


@JUMPING
@pytest.mark.requirement("resources-read", "templates-route")
async def test_a_uri_made_from_a_template_leads_to_its_backend(stage: Stage, route: Route) -> None:
    backend = library(await stage.backend())
    other = library(await stage.backend("beta"))
    client = await stage.connect(route.path)
    read = await client.request("resources/read", {"uri": route.uri("db://users/rows/7?fields=a,b")})
    assert read["contents"][0]["uri"] == route.uri("db://users/rows/7?fields=a,b")
    assert backend.of("resources/read")[0]["params"] == {"uri": "db://users/rows/7?fields=a,b"}
    assert not other.of("resources/read")


@pytest.mark.requirement("resource-not-found")
async def test_a_missing_resource_is_said_with_the_uri_that_was_asked(stage: Stage, route: Route) -> None:
    library(await stage.backend())
    client = await stage.connect(route.path)
    error = await client.refused("resources/read", {"uri": route.uri("file:///none")})
    assert error.code == NOT_FOUND
    assert error.data == {"uri": route.uri("file:///none")}


@JUMPING
@pytest.mark.requirement("resource-not-found")
@pytest.mark.parametrize("uri", ["nobody+file:///x", "file:///a/b", "", "alpha", "alphabet+x:/", "\u00e4://"])
async def test_a_uri_that_belongs_to_no_backend_is_not_found(stage: Stage, uri: str) -> None:
    backend = library(await stage.backend())
    client = await stage.connect()
    error = await client.refused("resources/read", {"uri": uri})
    assert error.code in (NOT_FOUND, INVALID_PARAMS)
    assert not backend.of("resources/read")


@JUMPING
@pytest.mark.requirement("resources-read")
@pytest.mark.parametrize("params", [None, {}, {"uri": 7}, {"uri": None}, {"name": "x"}], ids=str)
async def test_a_read_without_a_proper_uri_is_invalid_params(stage: Stage, params: Message | None) -> None:
    library(await stage.backend())
    client = await stage.connect()
    assert (await client.refused("resources/read", params)).code == INVALID_PARAMS


# Subscriptions -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("subscribe", "updated-sub-resource", "pitfall-sub-resource")
async def test_updates_of_a_subscribed_resource_and_of_its_parts_reach_the_subscriber(
    stage: Stage, route: Route
) -> None:
    backend = library(await stage.backend())
    client, other = await stage.connect(route.path), await stage.connect(route.path)
    stream, others = await client.listen(), await other.listen()
    uri = str(RESOURCE["uri"])
    assert await client.request("resources/subscribe", {"uri": route.uri(uri)}) == {}
    [connection] = [c for c in backend.connections if c.of("resources/subscribe")]
    for changed in (uri, uri + "/part"):
        connection.notify("notifications/resources/updated", {"uri": changed, "_meta": {"k": 1}})
        message = await stream.message("notifications/resources/updated")
        assert message["params"] == {"uri": route.uri(changed), "_meta": {"k": 1}}
    assert await client.request("resources/unsubscribe", {"uri": route.uri(uri)}) == {}
    assert connection.of("resources/unsubscribe")[0]["params"] == {"uri": uri}
    assert [event for event in others.exchange.unread if event.data] == []


@JUMPING
@pytest.mark.requirement("subscribe")
async def test_updates_that_wait_for_a_stream_coalesce_by_resource(stage: Stage, route: Route) -> None:
    backend = library(await stage.backend())
    client = await stage.connect(route.path)
    await client.request("resources/subscribe", {"uri": route.uri("file:///a/1")})
    [connection] = [c for c in backend.connections if c.of("resources/subscribe")]
    for uri in ("file:///a/1", "file:///a/2", "file:///a/1"):
        connection.notify("notifications/resources/updated", {"uri": uri})
    await trio.sleep(1)
    stream = await client.listen()
    await trio.sleep(1)
    heard = [event.message["params"]["uri"] for event in stream.exchange.unread if event.data]
    assert sorted(heard) == [route.uri("file:///a/1"), route.uri("file:///a/2")]


@JUMPING
@pytest.mark.requirement("subscribe")
async def test_subscribing_twice_and_unsubscribing_from_nothing_is_no_error(stage: Stage, route: Route) -> None:
    library(await stage.backend())
    client = await stage.connect(route.path)
    uri = {"uri": route.uri("file:///a/1")}
    assert await client.request("resources/unsubscribe", uri) == {}
    for _ in range(3):
        assert await client.request("resources/subscribe", uri) == {}
    assert await client.request("resources/unsubscribe", uri) == {}


@JUMPING
@pytest.mark.requirement("subscribe")
async def test_a_backend_without_subscriptions_refuses_them(stage: Stage, route: Route) -> None:
    backend = await stage.backend(capabilities={"resources": {}})
    backend.add("resources", RESOURCE)
    client = await stage.connect(route.path)
    await client.request("resources/list")
    error = await client.refused("resources/subscribe", {"uri": route.uri(str(RESOURCE["uri"]))})
    assert error.code == METHOD_NOT_FOUND


# list_changed ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("list-changed")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
async def test_a_change_of_a_list_reaches_the_client_and_the_new_list_is_served(
    stage: Stage, route: Route, kind: str
) -> None:
    backend = library(await stage.backend())
    backend.result("echo", text("yes"))
    backend.add("prompts", {"name": "first"})
    client = await stage.connect(route.path)
    await client.call(route.name("echo"))
    before = await client.request(f"{kind}/list")
    stream = await client.listen()
    added: dict[str, Any] = {"uri": "file:///a/new"} if kind == "resources" else {"inputSchema": {"type": "object"}}
    backend.add(kind, {"name": "new", **added})
    backend.connections[-1].notify(f"notifications/{kind}/list_changed")
    assert await stream.message(f"notifications/{kind}/list_changed")
    after = await client.request(f"{kind}/list")
    assert len(after[kind]) == len(before[kind]) + 1


@JUMPING
@pytest.mark.requirement("list-changed")
async def test_changes_of_several_backends_at_once_are_one_notification_of_a_kind(stage: Stage) -> None:
    names = ("alpha", "beta", "gamma")
    for name in names:
        (await stage.backend(name)).result("echo", text(name))
    client = await stage.connect()
    for name in names:
        await client.call(f"{name}__echo")
    stream = await client.listen()
    await trio.sleep(5)
    before = len([event for event in stream.exchange.unread if event.data])
    for backend in stage.backends.values():
        backend.result("new", text("new"))
        for _ in range(3):
            backend.connections[-1].notify("notifications/tools/list_changed")
    await trio.sleep(5)
    assert len([event for event in stream.exchange.unread if event.data]) == before + 1


@JUMPING
@pytest.mark.requirement("list-changed")
async def test_a_session_without_a_connection_of_its_own_hears_of_changes_too(stage: Stage) -> None:
    backend = await stage.backend()
    backend.result("echo", text("yes"))
    client = await stage.connect()
    stream = await client.listen()
    await client.request("tools/list")  # answered from what the gateway asked by itself
    backend.result("new", text("new"))
    for connection in backend.connections:
        connection.notify("notifications/tools/list_changed")
    assert await stream.message("notifications/tools/list_changed")
    assert len((await client.request("tools/list"))["tools"]) == 2


# Prompts -----------------------------------------------------------------------------------------------------

PROMPT = {
    "name": "review",
    "title": "Review",
    "description": "d",
    "arguments": [{"name": "code", "description": "c", "required": True}],
    "_meta": {"com.example/p": 1},
}


@pytest.mark.requirement("prompts")
async def test_prompts_are_listed_and_got(stage: Stage, route: Route) -> None:
    backend = await stage.backend()
    backend.add("prompts", PROMPT)

    @backend.on("prompts/get")
    async def get(request: Request) -> Message:
        assert request.params["name"] == "review"
        said = request.params["arguments"]["code"]
        resource = {"uri": "file:///r", "text": "inside", "mimeType": "text/plain"}
        return {
            "description": "d",
            "messages": [
                {"role": "user", "content": {"type": "text", "text": said}},
                {"role": "assistant", "content": {"type": "resource", "resource": resource}},
                {"role": "user", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
            ],
        }

    client = await stage.connect(route.path)
    assert await client.request("prompts/list") == {"prompts": [{**PROMPT, "name": route.name("review")}]}
    got = await client.request("prompts/get", {"name": route.name("review"), "arguments": {"code": "x = 1"}})
    assert got["messages"][0]["content"]["text"] == "x = 1"
    assert got["messages"][1]["content"]["resource"]["uri"] == route.uri("file:///r")
    assert got["messages"][2]["content"]["type"] == "image"


@JUMPING
@pytest.mark.requirement("prompts")
@pytest.mark.parametrize("params", [{"name": "none"}, {"name": 7}, {}, None], ids=str)
async def test_an_unknown_prompt_is_invalid_params(stage: Stage, params: Message | None) -> None:
    backend = await stage.backend()
    backend.add("prompts", PROMPT)
    client = await stage.connect()
    assert (await client.refused("prompts/get", params)).code == INVALID_PARAMS


# Completion --------------------------------------------------------------------------------------------------


def completing(backend: Backend) -> Backend:
    """A backend that completes what it is asked."""
    backend.add("prompts", PROMPT)
    backend.add("resourceTemplates", TEMPLATE)

    @backend.on("completion/complete")
    async def complete(request: Request) -> Message:
        return {"completion": {"values": [request.params["argument"]["value"] + "!"], "total": 1, "hasMore": False}}

    return backend


@pytest.mark.requirement("completion")
async def test_arguments_of_prompts_and_templates_are_completed(stage: Stage, route: Route) -> None:
    backend = completing(await stage.backend())
    client = await stage.connect(route.path)
    refs = {
        "ref/prompt": ({"type": "ref/prompt", "name": route.name("review")}, {"type": "ref/prompt", "name": "review"}),
        "ref/resource": (
            {"type": "ref/resource", "uri": route.uri(TEMPLATE["uriTemplate"])},
            {"type": "ref/resource", "uri": TEMPLATE["uriTemplate"]},
        ),
    }
    for ours, theirs in refs.values():
        got = await client.request("completion/complete", {"ref": ours, "argument": {"name": "code", "value": "a"}})
        assert got == {"completion": {"values": ["a!"], "total": 1, "hasMore": False}}
        assert backend.of("completion/complete")[-1]["params"]["ref"] == theirs


@pytest.mark.cells((Cell("2025-06-18"), Cell("2025-11-25")))
@pytest.mark.requirement("completion")
async def test_the_context_of_a_completion_passes(stage: Stage, route: Route) -> None:
    backend = completing(await stage.backend())
    client = await stage.connect(route.path)
    context = {"arguments": {"language": "python"}}
    ref = {"type": "ref/prompt", "name": route.name("review")}
    params = {"ref": ref, "argument": {"name": "code", "value": "a"}, "context": context}
    await client.request("completion/complete", params)
    assert backend.of("completion/complete")[0]["params"]["context"] == context


@JUMPING
@pytest.mark.requirement("completion")
@pytest.mark.parametrize(
    "ref",
    [{"type": "ref/prompt", "name": "none"}, {"type": "ref/other", "name": "x"}, {}, {"type": "ref/prompt"}, "x", None],
    ids=str,
)
async def test_an_unknown_reference_is_invalid_params(stage: Stage, ref: Any) -> None:
    completing(await stage.backend())
    client = await stage.connect()
    params = {"ref": ref, "argument": {"name": "code", "value": "a"}}
    assert (await client.refused("completion/complete", params)).code == INVALID_PARAMS


@JUMPING
@pytest.mark.requirement("completion")
async def test_a_backend_without_completion_completes_nothing_while_another_can(stage: Stage) -> None:
    completing(await stage.backend("alpha"))
    plain = await stage.backend("beta")
    plain.add("prompts", PROMPT)
    plain.answers("prompts/get", {"messages": []})
    client = await stage.connect()
    await client.request("prompts/get", {"name": "beta__review"})
    params = {"ref": {"type": "ref/prompt", "name": "beta__review"}, "argument": {"name": "code", "value": "a"}}
    assert await client.request("completion/complete", params) == {"completion": {"values": []}}
