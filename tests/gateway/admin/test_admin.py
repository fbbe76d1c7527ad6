"""The admin listener, in process and once over the serve loop."""

import json
from typing import Any

import pytest
import trio

from gateway.admin.app import Readiness, admin_app
from gateway.admin.pages import BODY_TIMEOUT, MAX_CONTENT_LENGTH, RESPONSE_TIMEOUT, pages
from gateway.http.config import ServeConfig
from gateway.http.serve import serve
from gateway.http.sockets import addresses, open_listeners
from tests.support.patience import PATIENCE

METRICS = b"# TYPE stagedoor_sessions gauge\nstagedoor_sessions 3\n"

HERE = {"from": "127.0.0.1"}
"""The address from which the tests ask."""


class State:
    """What the callables report."""

    def __init__(self) -> None:
        self.readiness = Readiness(True, details={"store": "memory", "sessions": 3})


@pytest.fixture
def state():
    return State()


async def scraped(accept: str) -> tuple[bytes, str]:
    return METRICS, "application/openmetrics-text" if "openmetrics" in accept else "text/plain; version=0.0.4"


@pytest.fixture
def app(state):
    return admin_app(
        lambda: state.readiness,
        scraped,
        hosts=("admin.example",),
        servers=lambda: {"listen": "127.0.0.1:8080", "servers": [{"name": "fx", "status": "down"}]},
    )


class Answered:
    """What came back for one request."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        start = events[0]
        self.status_code = start["status"]
        self.headers = {name.decode().title(): value.decode() for name, value in start["headers"]}
        self.data = b"".join(event.get("body", b"") for event in events[1:])

    def json(self) -> Any:
        return json.loads(self.data)


async def ask(app: Any, method: str, path: str, headers: dict[str, str], data: bytes = b"") -> Answered:
    """One request, as a server that speaks ASGI puts it."""
    path, _, query = path.partition("?")
    body = [{"type": "http.request", "body": data, "more_body": False}]
    events: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not body:
            await trio.sleep_forever()
        return body.pop()

    async def send(event: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        events.append(event)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8081),
        "extensions": {},
    }
    await app(scope, receive, send)
    return Answered(events)


async def get(app: Any, path: str, host: str = "127.0.0.1:8081", method: str = "GET") -> Answered:
    return await ask(app, method, path, {"Host": host})


@pytest.mark.parametrize("path", ["/livez", "/healthz"])
async def test_livez_says_that_the_process_answers(path, app):
    response = await get(app, path)
    assert response.status_code == 200
    assert response.json() == {"status": "ok"}
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("readiness", "code", "status"),
    [
        (Readiness(True), 200, "ready"),
        (Readiness(True, degraded=True), 200, "degraded"),
        (Readiness(False), 503, "not ready"),
        (Readiness(False, degraded=True), 503, "not ready"),
    ],
)
async def test_readyz_tells_ready_degraded_and_draining(readiness, code, status, app, state):
    state.readiness = readiness
    response = await get(app, "/readyz")
    assert response.status_code == code
    assert response.json() == {
        "status": status,
        "ready": readiness.ready,
        "degraded": readiness.degraded,
    }


async def test_names_it_is_called_by_are_taken_with_any_port():
    """A scraper on the network of compose asks for `gateway-1:8081`."""
    names = ("gateway-1", "Public.Example:8443")
    app = admin_app(lambda: Readiness(True), lambda: (METRICS, "text/plain"), names)
    for host in ("gateway-1:8081", "gateway-1", "public.example:8081", "10.1.2.3:8081", "localhost"):
        assert (await get(app, "/readyz", host)).status_code == 200, host
    assert (await get(app, "/readyz", "gateway-2:8081")).status_code == 403


async def test_readyz_shows_the_details(app):
    body = (await get(app, "/readyz")).json()
    assert (body["store"], body["sessions"]) == ("memory", 3)


async def test_the_servers_are_told_and_with_readyz_when_it_is_asked_to_be_verbose(app):
    told = {"listen": "127.0.0.1:8080", "servers": [{"name": "fx", "status": "down"}]}
    assert (await get(app, "/api/servers")).json() == told
    for query in ("?verbose", "?verbose=1"):
        assert told.items() <= (await get(app, f"/readyz{query}")).json().items()
    assert "servers" not in (await get(app, "/readyz")).json()


async def test_metrics_are_passed_as_they_are(app):
    response = await get(app, "/metrics")
    assert response.data == METRICS
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4"


async def test_metrics_are_in_the_form_that_is_asked_for(app):
    headers = {"Host": "127.0.0.1:8081", "Accept": "application/openmetrics-text;version=1.0.0"}
    response = await ask(app, "GET", "/metrics", headers)
    assert response.headers["Content-Type"] == "application/openmetrics-text"


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8081", 200),
        ("10.3.4.5:8081", 200),
        ("[fd00::1]:8081", 200),
        ("localhost", 200),
        ("ADMIN.example:8081", 200),
        ("evil.example", 403),
        ("10.3.4.5.evil.example", 403),
        ("", 403),
    ],
)
async def test_only_addresses_and_known_names_are_served(host, code, app):
    for path in ("/livez", "/readyz", "/metrics", "/api/servers"):
        assert (await get(app, path, host)).status_code == code


@pytest.mark.parametrize(
    ("method", "path", "code"), [("GET", "/nothing", 404), ("POST", "/livez", 405), ("POST", "/metrics", 405)]
)
async def test_other_paths_and_methods_get_json_errors(method, path, code, app):
    response = await get(app, path, method=method)
    assert response.status_code == code
    assert "error" in response.json()
    assert ("Allow" in response.headers) == (code == 405)


def test_quarts_limits_are_ours():
    app = pages(scraped, dict, None)
    assert app.config["RESPONSE_TIMEOUT"] == RESPONSE_TIMEOUT
    assert app.config["BODY_TIMEOUT"] == BODY_TIMEOUT
    assert app.config["MAX_CONTENT_LENGTH"] == MAX_CONTENT_LENGTH


class Serving:
    """The app served on a real listener; `failures` is what was logged."""

    def __init__(self, app: Any) -> None:
        self.listeners = open_listeners("127.0.0.1", 0)
        self.stop = trio.Event()
        self.failures: list[str] = []
        self._app = app

    async def run(self) -> None:
        await serve(self._app, self.listeners, ServeConfig(), stop=self.stop, log=self)

    def error(self, event: str, **_: Any) -> None:
        self.failures.append(event)

    debug = info = warning = error

    async def ask(self, *requests: bytes) -> list[bytes]:
        """The answers' beginnings; all requests on one connection."""
        async with await trio.open_tcp_stream("127.0.0.1", addresses(self.listeners)[0][1]) as stream:
            answers = []
            for request in requests:
                await stream.send_all(request)
                answers.append((await stream.receive_some())[:12])
            return answers


async def test_the_serve_loop_serves_it(app):
    serving = Serving(app)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serving.run)
            paths = (b"/livez", b"/readyz", b"/metrics", b"/nothing")
            answers = await serving.ask(*(b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path for path in paths))
            serving.stop.set()
    assert answers == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 404"]
    assert serving.failures == []


async def test_a_scrape_that_crashes_is_a_500_and_is_logged_by_us():
    def broken() -> Any:
        raise RuntimeError("a bug")

    serving = Serving(admin_app(broken, broken))
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serving.run)
            assert await serving.ask(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == [b"HTTP/1.1 500"]
            assert await serving.ask(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == [b"HTTP/1.1 200"]
            serving.stop.set()
    assert serving.failures == ["request_crashed"]


async def test_what_others_say_is_brought_up_to_date_before_it_is_told_but_not_for_whether_the_process_answers():
    asked: list[str] = []

    async def look() -> None:
        await trio.lowlevel.checkpoint()
        asked.append("look")

    app = admin_app(lambda: Readiness(bool(asked)), scraped, before=look)
    assert (await get(app, "/livez")).status_code == 200
    assert asked == []
    assert (await get(app, "/readyz")).status_code == 200
    assert (await get(app, "/metrics")).status_code == 200
    assert (await get(app, "/readyz", host="evil.example")).status_code == 403
    assert asked == ["look", "look"]


# Sessions ----------------------------------------------------------------------------------------------------


class Operated:
    """Sessions that are listed and acted on."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    async def __call__(self, what: str, name: str, options: Any) -> tuple[int, dict[str, Any]]:
        await trio.lowlevel.checkpoint()
        self.asked.append((what, name, dict(options)))
        return (200, {"done": what}) if name != "gone" else (404, {"error": "there is no such session"})


@pytest.fixture
def operated():
    return Operated()


async def act(operated: Operated, path: str = "/api/sessions/abc/end", data: bytes = b"{}", **headers: str) -> Any:
    app = admin_app(lambda: Readiness(True), scraped, sessions=operated)
    sent = {"Host": "127.0.0.1:8081", "Content-Type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(app, "POST", path, {**sent, "Content-Length": str(len(data))}, data)


async def test_sessions_are_listed_page_by_page(operated):
    app = admin_app(lambda: Readiness(True), scraped, sessions=operated)
    response = await get(app, "/api/sessions?cursor=x:1&limit=7")
    assert (response.status_code, response.json()) == (200, {"done": "list"})
    assert operated.asked == [("list", "", {"cursor": "x:1", "limit": "7"})]


async def test_a_session_is_acted_on_by_its_name(operated):
    assert (await act(operated, data=b'{"to": "there"}')).status_code == 200
    assert (await act(operated, "/api/sessions/gone/end")).status_code == 404
    assert operated.asked == [("end", "abc", {"to": "there", **HERE}), ("end", "gone", HERE)]


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        ({"Origin": "http://evil.example"}, b"{}", 403),
        ({"Origin": "null"}, b"{}", 403),
        ({"Origin": "http://127.0.0.1:8081"}, b"{}", 403),
        ({"Sec_Fetch_Site": "cross-site"}, b"{}", 403),
        ({"Host": "evil.example"}, b"{}", 403),
        ({"Content_Type": "text/plain"}, b"{}", 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, b"a=b", 415),
        ({}, b"[]", 400),
        ({}, b"", 400),
        ({}, b'{"to": 7}', 400),
    ],
)
async def test_no_page_of_a_browser_and_no_nonsense_changes_anything(headers, data, status, operated):
    assert (await act(operated, data=data, **headers)).status_code == status
    assert operated.asked == []
    app = admin_app(lambda: Readiness(True), scraped, sessions=operated)
    assert (await get(app, "/api/sessions/abc/end")).status_code == 405


# Principals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["revoke", "restore"])
async def test_access_is_taken_away_and_given_back_by_name(what, operated):
    told = await act(operated, f"/api/principals/{what}", b'{"principal": "16:https://idp.test:3:ann"}')
    assert told.status_code == 200
    assert operated.asked == [(what, "16:https://idp.test:3:ann", HERE)]


async def test_accounts_are_ended_and_sealed_anew(operated):
    assert (await act(operated, "/api/accounts/disconnect", b'{"principal": "ann"}')).status_code == 200
    assert (await act(operated, "/api/vault/rewrap", b"{}")).status_code == 200
    ended = ("accounts-disconnect", "ann", {"principal": "ann", **HERE})
    assert operated.asked == [ended, ("rewrap", "", HERE)]


@pytest.mark.parametrize(
    ("path", "headers", "data", "status"),
    [
        ("accounts/disconnect", {"Origin": "http://evil.example"}, b'{"principal": "ann"}', 403),
        ("accounts/disconnect", {}, b"{}", 400),
        ("vault/rewrap", {"Content_Type": "text/plain"}, b"{}", 415),
        ("vault/rewrap", {}, b"[]", 400),
    ],
)
async def test_no_page_and_no_nonsense_ends_an_account(path, headers, data, status, operated):
    assert (await act(operated, f"/api/{path}", data, **headers)).status_code == status
    assert operated.asked == []


@pytest.mark.parametrize(
    ("path", "headers", "data", "status"),
    [
        ("revoke", {"Origin": "http://evil.example"}, b'{"principal": "ann"}', 403),
        ("revoke", {"Content_Type": "text/plain"}, b'{"principal": "ann"}', 415),
        ("revoke", {}, b"{}", 400),
        ("revoke", {}, b"[]", 400),
        ("revoke", {}, b'{"principal": ""}', 400),
        ("list", {}, b'{"principal": "ann"}', 400),
    ],
)
async def test_nobody_loses_his_access_by_a_page_or_by_nonsense(path, headers, data, status, operated):
    assert (await act(operated, f"/api/principals/{path}", data, **headers)).status_code == status
    assert operated.asked == []
