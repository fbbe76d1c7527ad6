from typing import Any

import pytest
import trio
import trio.testing

from gateway.native import Context, Embedded, NotFoundError, ResourceInfo, Server
from gateway.native.uris import parse


def library(**options: Any) -> Server:
    server = Server("t", **options)

    @server.resource("text://a", title="A", mime_type="text/markdown")
    async def words() -> str:
        """Some words."""
        return "# words"

    @server.resource("bytes://b")
    async def raw() -> bytes:
        return b"\x00\x01"

    @server.resource("json://c")
    async def data() -> dict[str, int]:
        return {"x": 1}

    @server.resource("parts://d")
    async def parts() -> list[Embedded]:
        return [Embedded("parts://d/1", "one", "text/plain"), Embedded("parts://d/2", b"two")]

    @server.resource("broken://e")
    async def broken() -> str:
        raise ValueError("torn")

    @server.resource("clock://now", every=5)
    async def now() -> str:
        return str(trio.current_time())

    async def pages(ctx: Context) -> list[ResourceInfo]:
        return [ResourceInfo(f"page://{n}", f"page {n}", size=n) for n in ctx.state.get("pages", [])]

    @server.template("page://{number}", mime_type="text/plain", listing=pages)
    async def page(number: int, ctx: Context) -> str:
        """One page."""
        if number > 9:
            raise NotFoundError(f"page://{number}")
        ctx.state.setdefault("pages", []).append(number)
        ctx.list_changed("resources")
        ctx.updated(f"page://{number}")
        return f"page {number}"

    @server.template("file://{+path}")
    async def file(path: str) -> str:
        return path

    return server


async def test_resources_are_listed_and_read_in_every_revision(connect: Any, version: str) -> None:
    client = await connect(library(), version)
    listed = (await client.request("resources/list"))["resources"]
    first = {"uri": "text://a", "name": "words", "description": "Some words.", "mimeType": "text/markdown"}
    assert listed[0] == first | ({"title": "A"} if version >= "2025-06-18" else {})
    contents = [
        (await client.request("resources/read", {"uri": uri}))["contents"]
        for uri in ("text://a", "bytes://b", "json://c", "parts://d")
    ]
    assert contents == [
        [{"uri": "text://a", "mimeType": "text/markdown", "text": "# words"}],
        [{"uri": "bytes://b", "mimeType": "application/octet-stream", "blob": "AAE="}],
        [{"uri": "json://c", "mimeType": "application/json", "text": '{"x":1}'}],
        [
            {"uri": "parts://d/1", "mimeType": "text/plain", "text": "one"},
            {"uri": "parts://d/2", "blob": "dHdv"},
        ],
    ]


async def test_templates_are_listed_and_their_variables_become_arguments(connect: Any, version: str) -> None:
    client = await connect(library(), version)
    templates = (await client.request("resources/templates/list"))["resourceTemplates"]
    assert templates[0] == {
        "uriTemplate": "page://{number}",
        "name": "page",
        "description": "One page.",
        "mimeType": "text/plain",
    }
    read = await client.request("resources/read", {"uri": "file:///a/b%20c"})
    assert read["contents"][0]["text"] == "/a/b c"


async def test_a_template_lists_what_the_session_has(connect: Any) -> None:
    server = library()
    client, other = await connect(server), await connect(server)
    await client.request("resources/read", {"uri": "page://3"})
    assert [note[0] for note in client.notes] == ["notifications/resources/list_changed"]
    listed = (await client.request("resources/list"))["resources"]
    assert listed[-1] == {"uri": "page://3", "name": "page 3", "size": 3}
    assert len((await other.request("resources/list"))["resources"]) == len(listed) - 1
    assert other.notes == []


@pytest.mark.parametrize("uri", ["nothing://x", "page://x", "page://10", "page://1/2", "page://"])
async def test_what_is_not_there_is_not_found(connect: Any, failed: Any, uri: str) -> None:
    client = await connect(library())
    with pytest.raises(failed) as caught:
        await client.request("resources/read", {"uri": uri})
    assert (caught.value.code, caught.value.data) == (-32002, {"uri": uri})


async def test_a_resource_that_crashes_is_an_internal_error(connect: Any, failed: Any) -> None:
    client = await connect(library())
    with pytest.raises(failed) as caught:
        await client.request("resources/read", {"uri": "broken://e"})
    assert caught.value.code == -32603
    assert "torn" in caught.value.message


async def test_subscribers_hear_of_changes_until_they_unsubscribe(connect: Any, failed: Any) -> None:
    server = library()
    client, other = await connect(server), await connect(server)
    assert await client.request("resources/subscribe", {"uri": "text://a"}) == {}
    await client.request("resources/subscribe", {"uri": "text://a"})
    server.updated("text://a")
    server.updated("bytes://b")
    assert client.notes == [("notifications/resources/updated", {"uri": "text://a"}, None)]
    await client.request("resources/unsubscribe", {"uri": "text://a"})
    server.updated("text://a")
    assert len(client.notes) == 1
    assert other.notes == []
    with pytest.raises(failed) as caught:
        await client.request("resources/subscribe", {"uri": "nothing://x"})
    assert caught.value.code == -32002


async def test_subscriptions_take_effect_in_order_and_are_bounded(connect: Any, failed: Any) -> None:
    server = library()
    client = await connect(server)
    ids = [client.post("resources/subscribe", {"uri": f"page://{n}"}) for n in range(1001)]
    with pytest.raises(failed) as caught:
        await client.answer_to(ids[-1])
    assert "1000" in caught.value.message
    client.post("resources/unsubscribe", {"uri": "page://0"})
    await client.answer_to(client.post("resources/subscribe", {"uri": "page://1000"}))
    server.updated("page://1000")
    assert [note[1]["uri"] for note in client.notes] == ["page://1000"]


async def test_a_resource_that_changes_by_itself_tells_its_subscribers_in_time(
    connect: Any, autojump_clock: Any
) -> None:
    client = await connect(library())
    await client.request("resources/subscribe", {"uri": "clock://now"})
    await trio.sleep(12)
    assert [note[1] for note in client.notes] == [{"uri": "clock://now"}] * 2
    await client.request("resources/unsubscribe", {"uri": "clock://now"})
    await trio.sleep(60)
    assert len(client.notes) == 2


async def test_resources_may_come_and_go(connect: Any, failed: Any) -> None:
    server = library()
    client = await connect(server)
    server.remove_resource("text://a")
    server.remove_resource("page://{number}")
    await client.until(lambda: bool(client.notes))
    await client.request("ping")
    assert [note[0] for note in client.notes] == ["notifications/resources/list_changed"]
    with pytest.raises(failed):
        await client.request("resources/read", {"uri": "page://3"})
    with pytest.raises(KeyError):
        server.remove_resource("text://a")


def test_a_decorator_without_its_uri_says_so() -> None:
    server = Server("t")
    for decorator in (server.resource, server.template):
        with pytest.raises(TypeError, match=f"write @server.{decorator.__name__}"):
            decorator(test_a_decorator_without_its_uri_says_so)  # type: ignore[operator]


def test_what_can_not_be_a_resource_is_refused_when_it_is_registered() -> None:
    server = Server("t")

    async def argued(x: int) -> str:
        return ""

    with pytest.raises(TypeError, match="no arguments"):
        server.resource("x://y")(argued)
    with pytest.raises(TypeError, match="must be id"):
        server.template("x://{id}")(argued)
    for wrong in ("x://y", "x://{a}/{a}", "x://{a", "x://{=a}", "x://{;a*}"):
        with pytest.raises(ValueError, match="variables"):
            parse(wrong)


def test_a_segment_ends_at_a_slash_and_a_path_does_not() -> None:
    assert parse("x://{a}/{b}").match("x://1/2%2F3") == {"a": "1", "b": "2/3"}
    assert parse("x://{a}").match("x://1/2") is None
    assert parse("x://{+a}.md").match("x://1/2.md") == {"a": "1/2"}


def test_a_resource_can_not_change_without_end() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Server("t").resource("x://y", every=0)(_words)


async def _words() -> str:
    return ""


async def test_variables_that_a_uri_leaves_out_have_their_defaults(connect: Any, failed: Any) -> None:
    server = Server("t")

    @server.template("search://{index}{/path*}{?q,limit}")
    async def search(index: str, path: list[str], q: str, limit: int = 5) -> str:
        return f"{index} {path} {q} {limit}"

    client = await connect(server)
    [template] = (await client.request("resources/templates/list"))["resourceTemplates"]
    assert template["uriTemplate"] == "search://{index}{/path*}{?q,limit}"

    async def read(uri: str) -> str:
        text: str = (await client.request("resources/read", {"uri": uri}))["contents"][0]["text"]
        return text

    assert await read("search://i/a/b?limit=7&q=x%20y") == "i ['a', 'b'] x y 7"
    assert await read("search://i/a?q=x") == "i ['a'] x 5"
    for uri in ("search://i/a", "search://i/a?q=x&limit=many", "search://i?q=x", "search://i/a?q=x&other=1"):
        with pytest.raises(failed):
            await read(uri)
