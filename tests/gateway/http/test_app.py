"""The rules of the HTTP endpoint as tables, in process (2025-11-25, basic/transports)."""

import json

import pytest

from actors.ports import Answer, Post, Principal
from actors.protocol import errors
from actors.protocol.table import Limits
from gateway.http.config import ServeConfig
from gateway.http.security import Security

BOTH = "application/json, text/event-stream"
JSON = {"accept": BOTH, "content-type": "application/json"}


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        (BOTH, 200),
        ("*/*", 200),
        ("application/*, text/*", 200),
        ("Application/JSON;q=0.5, Text/Event-Stream", 200),
        ("text/event-stream, */*;q=0.1", 200),
        ("application/json", 406),
        ("text/event-stream", 406),
        ("application/*", 406),
        ("text/html", 406),
        ("application/json, text/event-stream;q=0", 406),
        ("*/*, application/json;q=0", 406),
        ("application/json, text/event-stream;q=nonsense", 406),
        ("application/jsonp, text/event-streams", 406),
        ("", 406),
        (None, 406),
        ("a/b," * 30 + BOTH, 200),
        ("a/b," * 8000 + BOTH, 406),
        ("application/json, text/event-stream" + ";a=b" * 8000, 200),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_post_must_accept_both_types(accept, status, ask, door):
    heard = await ask("POST", headers={**JSON, "accept": accept}, body=b"{}")
    assert heard.status == status
    assert len(door.asked) == (status == 200)


@pytest.mark.parametrize(
    ("accept", "status"),
    [("text/event-stream", 200), ("text/*", 200), ("*/*", 200), (BOTH, 200), ("application/json", 406), (None, 406)],
)
async def test_a_get_must_accept_an_event_stream(accept, status, ask, door):
    heard = await ask("GET", headers={"accept": accept})
    assert heard.status == status
    assert len(door.asked) == (status == 200)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('Application/JSON;charset="UTF-8"', 200),
        ("application/json; charset=utf-16", 415),
        ("application/json-rpc", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        (None, 415),
    ],
)
async def test_a_post_must_be_json(content_type, status, ask, door):
    heard = await ask("POST", headers={**JSON, "content-type": content_type}, body=b"{}")
    assert heard.status == status
    assert len(door.asked) == (status == 200)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/mcp", 405, "GET, POST, DELETE, OPTIONS"),
        ("PATCH", "/mcp/files", 405, "GET, POST, DELETE, OPTIONS"),
        ("HEAD", "/mcp", 405, "GET, POST, DELETE, OPTIONS"),
        ("POST", "/healthz", 405, "GET, HEAD"),
        ("GET", "/healthz", 200, None),
        ("HEAD", "/healthz", 200, None),
        ("DELETE", "/mcp/", 200, None),
        ("DELETE", "/mcp/files/", 200, None),
        ("POST", "/", 404, None),
        ("GET", "/mcps", 404, None),
        ("GET", "/mcp/unknown", 404, None),
        ("GET", "/mcp/files/more", 404, None),
        ("GET", "/metrics", 404, None),
    ],
)
async def test_paths_and_methods(method, path, status, allow, ask):
    heard = await ask(method, path, {"accept": BOTH})
    assert heard.status == status
    assert heard.headers.get("allow") == allow
    assert heard.ended
    if method == "HEAD":
        assert heard.body == b""


async def test_a_missing_scope_is_challenged_with_all_that_are_needed(ask, door):
    door.reply(Answer.refusing(errors.insufficient_scope(["a", "repo:write"]), 7))
    heard = await ask("POST", "/mcp/files", JSON, b"{}")
    assert heard.status == 403
    assert heard.headers["www-authenticate"].startswith('Bearer error="insufficient_scope"')
    assert 'scope="a repo:write"' in heard.headers["www-authenticate"]
    assert json.loads(heard.body)["id"] == 7


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
@pytest.mark.parametrize("place", ["/mcp", "/ws", "/sse"])
@pytest.mark.parametrize("headers", [JSON, {**JSON, "content-type": "text/plain"}])
async def test_9_an_endpoint_that_is_hidden_looks_like_one_that_there_is_not(
    method, place, headers, ask, make_app, door
):
    app = make_app(sees=lambda endpoint, asker: endpoint != "files")
    hidden, unknown = [await ask(method, f"{place}/{name}", headers, b"{}", app=app) for name in ("files", "unknown")]
    assert hidden.status == 404
    assert (hidden.status, hidden.headers, hidden.body) == (unknown.status, unknown.headers, unknown.body)
    assert door.asked == []


@pytest.mark.parametrize(
    ("coding", "status"), [("identity", 200), ("Identity", 200), ("gzip", 415), ("gzip, identity", 415), ("", 415)]
)
async def test_a_compressed_body_is_refused(coding, status, ask, door):
    heard = await ask("POST", headers={**JSON, "accept": BOTH, "content-encoding": coding}, body=b"{}")
    assert (heard.status, heard.headers.get("accept-encoding")) == (status, None if status == 200 else "identity")
    assert len(door.asked) == (status == 200)


async def test_a_refusal_is_a_json_rpc_error_without_id(ask):
    heard = await ask("POST", headers={**JSON, "content-type": "text/plain"})
    assert heard.headers["content-type"] == "application/json"
    body = json.loads(heard.body)
    assert set(body) == {"jsonrpc", "error"}
    assert body["error"]["code"] == -32600
    assert "Content-Type" in body["error"]["message"]


@pytest.mark.parametrize(("declared", "size"), [(None, 11), ("11", 11), ("99999999999999999999", 1)])
async def test_a_body_over_the_limit_is_refused(declared, size, ask, make_app, door):
    app = make_app(limits=Limits(message_bytes=10))
    heard = await ask("POST", headers={**JSON, "content-length": declared}, body=b"x" * size, app=app)
    assert heard.status == 413
    assert door.asked == []


async def test_a_body_at_the_limit_is_taken(ask, make_app, door):
    heard = await ask("POST", headers=JSON, body=b"x" * 10, app=make_app(limits=Limits(message_bytes=10)))
    assert heard.status == 200
    assert door.asked[0].body == b"x" * 10


async def test_headers_reach_the_door_joined_and_stripped(make_app, door):
    raw = [(b"host", b"localhost"), (b"x-a", b" 1 "), (b"x-a", b"2"), (b"accept", BOTH.encode())]

    async def send(_):
        pass

    await make_app()({"type": "http", "method": "DELETE", "path": "/mcp", "headers": raw}, None, send)
    assert door.asked[0].headers == {"host": "localhost", "x-a": "1, 2", "accept": BOTH}


async def test_an_overloaded_gateway_says_when_to_come_back(ask, make_app, door):
    app = make_app(overloaded=lambda: True)
    heard = await ask("POST", headers=JSON, body=b"{}", app=app)
    assert (heard.status, heard.headers["retry-after"]) == (503, "1")
    assert json.loads(heard.body)["error"]["code"] == -32603
    assert (await ask("DELETE", app=app)).status == 200  # what lightens the load goes on
    assert door.asked[0].__class__.__name__ == "Delete"


async def test_the_headers_of_an_answer_are_written(ask, door):
    door.reply(Answer(429, b"{}", (("Retry-After", "2"),)))
    heard = await ask("POST", headers=JSON, body=b"{}")
    assert heard.status == 429
    assert heard.headers == {"retry-after": "2", "content-type": "application/json", "content-length": "2"}


# Identity.

TOKENS = Security("127.0.0.1", tokens={"alice": "a-token", "bob": "b-token"})


@pytest.mark.parametrize(
    ("authorization", "name"),
    [
        ("Bearer a-token", "alice"),
        ("bearer b-token", "bob"),
        ("Bearer a-tokeN", 'realm="stagedoor"'),
        ("Basic a-token", 'realm="stagedoor"'),
        ("a-token", 'realm="stagedoor"'),
        ("Bearer ", 'realm="stagedoor"'),
        ("Bearer é", 'error="invalid_request"'),
        ("Bearer a-token, Bearer b-token", 'error="invalid_request"'),
        (None, 'realm="stagedoor"'),
    ],
)
async def test_a_bearer_token_tells_who_speaks(authorization, name, ask, make_app, door):
    heard = await ask(
        "POST", headers={**JSON, "authorization": authorization}, body=b"{}", app=make_app(security=TOKENS)
    )
    if "=" in name:
        assert heard.status == (400 if "invalid_request" in name else 401)
        challenge = heard.headers["www-authenticate"]
        assert challenge.startswith("Bearer ")
        assert name in challenge
        assert ("invalid_token" in challenge) == (authorization == "Bearer a-tokeN")
        assert door.asked == []
    else:
        assert isinstance(door.asked[0], Post)
        assert door.asked[0].principal == Principal(name)


@pytest.mark.parametrize(("method", "path"), [("GET", "/mcp"), ("DELETE", "/mcp"), ("PUT", "/mcp"), ("GET", "/mcp/x")])
async def test_nothing_is_told_without_a_token(method, path, ask, make_app, door):
    heard = await ask(method, path, {"accept": BOTH}, app=make_app(security=TOKENS))
    assert heard.status == 401
    assert door.asked == []


async def test_health_and_preflights_need_no_token(ask, make_app):
    app = make_app(security=TOKENS)
    assert (await ask("GET", "/healthz", app=app)).status == 200
    heard = await ask("OPTIONS", headers={"origin": "http://localhost:5173"}, app=app)
    assert heard.status == 204


async def test_tokens_are_not_shown(make_app):
    assert "a-token" not in repr(TOKENS)


async def test_no_tokens_configured_admits_nobody(ask, make_app):
    heard = await ask("GET", headers={"accept": "*/*"}, app=make_app(security=Security("127.0.0.1", tokens={})))
    assert heard.status == 401


# Browsers.


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("foreign", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}])
async def test_foreign_hosts_and_origins_are_refused_on_every_method(method, foreign, ask, door):
    heard = await ask(method, headers={**JSON, **foreign}, body=b"{}")
    assert heard.status == 403
    assert "access-control-allow-origin" not in heard.headers
    assert door.asked == []


async def test_a_page_of_an_allowed_origin_can_read_the_session_id(ask, door):
    door.reply(Answer(200, b"{}", (("Mcp-Session-Id", "s1"),)))
    heard = await ask("POST", headers={**JSON, "origin": "http://localhost:5173"}, body=b"{}")
    assert heard.headers["access-control-allow-origin"] == "http://localhost:5173"
    assert "Mcp-Session-Id" in heard.headers["access-control-expose-headers"]
    assert heard.headers["vary"] == "Origin"


async def test_a_stream_to_a_page_carries_the_headers_too(ask, door):
    door.stream(b"data: 1\n\n", None)
    heard = await ask("GET", headers={"accept": "*/*", "origin": "http://localhost:5173"})
    assert heard.headers["access-control-allow-origin"] == "http://localhost:5173"
    assert heard.body == b"data: 1\n\n"


async def test_a_preflight_grants_what_the_script_asks(ask, door):
    asked = "content-type, mcp-session-id, mcp-param-region"
    heard = await ask("OPTIONS", headers={"origin": "http://localhost:5173", "access-control-request-headers": asked})
    assert heard.status == 204
    assert heard.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert heard.headers["access-control-allow-headers"] == asked
    assert door.asked == []


@pytest.mark.parametrize("asked", ["x y", "x:1", "x, (y)", "x\u00e9", ",", "x" * 8000 + " y"])
async def test_a_preflight_repeats_nothing_that_is_no_list_of_header_names(ask, asked):
    heard = await ask("OPTIONS", headers={"origin": "http://localhost:5173", "access-control-request-headers": asked})
    assert heard.headers["access-control-allow-headers"].startswith("Accept, Authorization, ")


async def test_options_without_an_origin_tells_the_methods(ask):
    heard = await ask("OPTIONS")
    assert (heard.status, heard.headers) == (204, {"allow": "GET, POST, DELETE, OPTIONS"})


def test_the_bounds_of_connections_follow_from_those_of_the_gateway():
    config = ServeConfig.within(Limits(message_bytes=1000, write=7.0, drain_deadline=3.0))
    assert (config.write, config.stop) == (7.0, 3.0)
    assert config.request.body > 2000


@pytest.mark.parametrize(
    ("method", "path", "headers", "kind"),
    [
        ("POST", "/mcp", {"host": "evil.example"}, "forbidden_host"),
        ("POST", "/mcp", {"origin": "https://evil.example"}, "forbidden_origin"),
        ("POST", "/nowhere", {}, "endpoint_not_found"),
        ("PUT", "/mcp", {}, "method_not_allowed"),
        ("POST", "/mcp", {"accept": "text/html"}, "not_acceptable"),
        ("POST", "/mcp", {"content-type": "text/plain"}, "unsupported_media_type"),
        ("POST", "/mcp", {}, "too_large"),
        ("GET", "/ws", {}, "other"),
    ],
)
async def test_what_never_comes_to_the_door_is_told_by_its_kind(make_app, ask, door, method, path, headers, kind):
    refused = list[str]()
    app = make_app(limits=Limits(message_bytes=100), refused=refused.append)
    heard = await ask(method, path, {**JSON, **headers}, b"x" * 101, app=app)
    assert heard.status >= 400
    assert (refused, door.asked) == ([kind], [])


async def test_what_the_door_refuses_is_told_by_the_door_alone(make_app, ask, door):
    async def refuse(asked: Post) -> Answer:
        return Answer.refusing(errors.session_not_found())

    door.answer, refused = refuse, list[str]()
    heard = await ask("POST", headers=JSON, body=b"{}", app=make_app(refused=refused.append))
    assert (heard.status, refused) == (404, [])
