"""All that a killed owner had recorded comes to its one end at the next, whatever its servers can do."""

from __future__ import annotations

import trio

from tests.support.harness import open_replicas
from tests.support.mcp_backend import Backend


async def test_every_recorded_request_gets_one_answer_and_every_server_its_session_or_a_new_one(autojump_clock):
    http = Backend("http", kind="http", tools=("slow", "echo"), held={"slow"})
    lasting = Backend("lasting", kind="http", tools=("slow",), held={"slow"})
    stdio = Backend("stdio", tools=("slow", "echo"), held={"slow"})
    async with open_replicas(2, http, lasting, stdio) as (one, two):
        client = await one.connect()
        await client.call("logging/setLevel", {"level": "error"})
        await client.names()
        calls = [client.begin("tools/call", {"name": f"{b.name}__slow"}, progress=b.name) for b in (http, stdio)]
        for backend in (http, stdio):
            (await backend.next()).progress(1)
        last = client.begin("tools/call", {"name": "lasting__slow"}, progress="lasting")
        request = await lasting.next()
        lasting.upstream.transport.prime("c0", request.id)
        params = {"progressToken": request.token, "progress": 1}
        lasting.upstream.notify("notifications/progress", params, related=request.id, cursor="c1")
        for call in (*calls, last):
            await call.next("notifications/progress")
        one.kill()
        client.to(two)
        await trio.sleep(10)  # nobody comes: it is taken over all the same
        assert sum(alive.ref.alive for alive in two.actors.sessions.table.values()) == 1
        [record] = two.store.records().values()
        assert record.tries == 0
        result = {"content": [{"type": "text", "text": "done"}]}
        lasting.upstream.transport.deliver({"id": request.id, "result": result}, request.id, "c2")
        for call in (*calls, last):
            rest = client.listen([e.id for e in call.events if e.id][-1])
            rest.id = call.id
            answer = await rest.response()
            await rest.end()
            assert len([m for m in rest.messages if m.get("id") == call.id]) == 1
            if call is last:
                assert answer["result"] == result
            else:
                assert answer["error"]["data"] == {"reason": "owner_lost", "executed": "unknown"}
        assert await client.tool("http__echo") == "http: echo"
        assert await client.tool("stdio__echo") == "stdio: echo"
        assert [b.methods.count("tools/call") for b in (http, lasting, stdio)] == [2, 1, 2]
        sessions = {u.transport.session for u in http.upstreams if u.params_of("tools/call")}
        assert len(sessions) == 1
        assert stdio.upstream.params_of("initialize")
        assert stdio.upstream.params_of("logging/setLevel") == [{"level": "error"}]
        [record] = two.store.records().values()
        assert not record.requests


async def test_a_process_is_started_anew_and_what_may_have_changed_is_said_once(autojump_clock):
    stdio = Backend("stdio")
    async with open_replicas(2, stdio) as (one, two):
        client = await one.connect("stdio")
        await client.call("logging/setLevel", {"level": "error"})
        await client.call("resources/subscribe", {"uri": "test:///a"})
        client.to(two)
        events = client.listen()
        await events.head()
        one.kill()
        await trio.sleep(20)
        assert await client.tool("echo") == "stdio: echo"
        await trio.sleep(5)
        kinds = [f"notifications/{kind}/list_changed" for kind in ("prompts", "resources", "tools")]
        assert sorted(m["method"] for m in events.messages) == [*kinds[:2], "notifications/resources/updated", kinds[2]]
        assert len(stdio.upstreams) == 2
        assert stdio.upstream.params_of("logging/setLevel") == [{"level": "error"}]
        assert stdio.upstream.params_of("resources/subscribe") == [{"uri": "test:///a"}]


async def test_a_session_whose_end_of_the_handshake_got_lost_outlives_its_owner(autojump_clock):
    """SDKs do not look at what became of `notifications/initialized`; a request says as much."""
    async with open_replicas(2, Backend("alpha", kind="http")) as (one, two):
        client = one.client("alpha")
        params = {"protocolVersion": client.version, "capabilities": {}, "clientInfo": client.info}
        opened = client.begin("initialize", params)
        await opened.result()
        client.session = opened.headers["mcp-session-id"]
        assert await client.tool("echo") == "alpha: echo"
        one.kill()
        client.to(two)
        assert await client.tool("echo") == "alpha: echo"


async def test_a_handshake_is_not_over_before_the_store_has_it(autojump_clock, monkeypatch):
    """Whoever got its 202 has a session that outlives its owner."""
    async with open_replicas(2, Backend("alpha", kind="http")) as (one, two):
        client = one.client()
        save, held = one.store.save, []
        monkeypatch.setattr(one.store, "save", lambda *operation: held.append(operation))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.initialize)
            await trio.sleep(1)
            assert held
            confirmed = client.post({"method": "notifications/initialized"})
            await trio.sleep(1)
            assert confirmed.status is None
            save(*held.pop())
            await trio.sleep(0.1)
            assert confirmed.status == 202
        one.kill()
        client.to(two)
        assert await client.call("ping") == {}
