"""The ladder for messages of the era without sessions: each rung, their order, and nothing between."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.protocol import classify_modern
from actors.protocol.classify import ModernNotification, ModernRequest, Rejection, classify_body
from actors.protocol.headers import outbound
from actors.protocol.messages import EMPTY, Error, Notification, Request, Result
from actors.protocol.meta import CAPABILITIES_KEY, LEVEL_KEY, VERSION_KEY
from actors.protocol.versions import MODERN, SERVED, VERSIONS

FUTURE = "2099-01-01"


def headers_of(method, params, version=MODERN):
    return {name.lower(): value for name, value in outbound(method, params, version=version)}


def rejected(route, code, status, id=1):
    assert isinstance(route, Rejection), route
    assert (route.error.code, route.status, route.id) == (code, status, id)
    return json.loads(route.body)["error"]


@pytest.fixture
def ask(raw, params):
    """ask(method, meta, change, **members): the ladder's verdict on a request with the headers that belong to it, as
    changed by `change` (None takes one out)."""

    def climb(method="tools/list", meta=None, change=None, accepts_sse=True, **members):
        body = raw(params(meta, **members))
        headers = {**headers_of(method, body), **(change or {})}
        headers = {name: value for name, value in headers.items() if value is not None}
        return classify_modern.modern(Request(1, method, body), headers, accepts_sse)

    return climb


def test_a_request_in_order_is_a_route_with_its_envelope(ask):
    route = ask("tools/call", {LEVEL_KEY: "info"}, name="t")
    assert isinstance(route, ModernRequest)
    assert (route.request.method, route.envelope.level) == ("tools/call", "info")


@pytest.mark.parametrize(
    "method",
    [
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "completion/complete",
    ],
)
def test_every_method_without_a_name_needs_three_headers_only(ask, method):
    assert isinstance(ask(method), ModernRequest)


def test_what_is_no_request_is_refused_or_dropped():
    headers = {"mcp-protocol-version": MODERN}
    for frame in (Result(1, Raw(b"{}")), Error(1, Raw(b"{}"))):
        rejected(classify_modern.modern(frame, headers), -32600, 400, id=None)
    batch = classify_body(b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', None, MODERN, modern=climb(headers))
    rejected(batch, -32600, 400, id=None)
    for method in ("notifications/cancelled", "notifications/anything"):
        note = Notification(method)
        assert classify_modern.modern(note, headers) == ModernNotification(note)
        assert classify_modern.modern(note, None) == ModernNotification(note)


def climb(headers):
    return lambda frame, version: classify_modern.modern(frame, headers)


def test_a_notification_of_a_revision_that_is_not_served_is_refused():
    error = rejected(classify_modern.modern(Notification("x"), {"mcp-protocol-version": FUTURE}), -32022, 400, id=None)
    assert error["data"] == {"supported": list(SERVED), "requested": FUTURE}


def test_a_listen_is_answered_by_a_stream_or_not_at_all(ask):
    rejected(ask("subscriptions/listen", accepts_sse=False, notifications={}), -32600, 406)
    assert isinstance(ask("subscriptions/listen", notifications={}), ModernRequest)
    assert isinstance(ask("tools/list", accepts_sse=False), ModernRequest)


@pytest.mark.parametrize("header", ["mcp-protocol-version", "mcp-method", "mcp-name"])
def test_a_mirrored_header_is_there_once_and_agrees(ask, header):
    assert isinstance(ask("tools/call", name="t"), ModernRequest)
    for wrong in (None, "other", "x\nx"):
        rejected(ask("tools/call", change={header: wrong}, name="t"), -32020, 400)


def test_a_legacy_header_over_a_modern_body_is_a_mismatch(ask):
    for version in VERSIONS:
        rejected(ask(change={"mcp-protocol-version": version}), -32020, 400)


def test_a_modern_body_without_a_header_is_a_mismatch(ask):
    rejected(ask(change={"mcp-protocol-version": None}), -32020, 400)


@pytest.mark.parametrize(
    "meta", [{VERSION_KEY: None}, {CAPABILITIES_KEY: None}, {VERSION_KEY: 5}, {CAPABILITIES_KEY: []}]
)
def test_an_envelope_that_lacks_something_is_refused(ask, meta):
    rejected(ask(meta=meta), -32602, 400)


@pytest.mark.parametrize("params", [EMPTY, Raw(b"{}"), Raw(b'{"_meta":5}')])
def test_a_modern_header_over_a_body_without_an_envelope_is_refused(params):
    rejected(classify_modern.modern(Request(1, "tools/list", params), headers_of("tools/list", params)), -32602, 400)


def test_a_revision_that_is_not_served_is_told_which_are(ask):
    error = rejected(ask(meta={VERSION_KEY: FUTURE}, change={"mcp-protocol-version": FUTURE}), -32022, 400)
    assert error["data"] == {"supported": list(SERVED), "requested": FUTURE}
    rejected(ask(meta={VERSION_KEY: VERSIONS[-1]}, change={"mcp-protocol-version": VERSIONS[-1]}), -32022, 400)


@pytest.mark.parametrize(
    "method",
    ["ping", "logging/setLevel", "resources/subscribe", "tasks/list", "roots/list", "notifications/cancelled"],
)
def test_a_method_that_the_era_has_not_is_not_found(ask, method):
    rejected(ask(method), -32601, 404)


def test_a_method_that_nobody_here_knows_is_for_the_endpoint_to_judge(ask):
    assert isinstance(ask("no/such"), ModernRequest)


def test_an_extension_adds_methods(raw, params):
    body = raw(params(taskId="t"))
    request = Request(1, "tasks/get", body)
    headers = headers_of("tasks/get", body)
    rejected(classify_modern.modern(request, headers), -32601, 404)
    assert isinstance(classify_modern.modern(request, headers, extra_methods=["tasks/get"]), ModernRequest)


def test_without_headers_only_the_body_is_checked(raw, params):
    assert isinstance(classify_modern.modern(Request(1, "tools/call", raw(params(name="t"))), None), ModernRequest)
    rejected(classify_modern.modern(Request(1, "tools/list", EMPTY), None), -32602, 400)
    rejected(classify_modern.modern(Request(1, "tools/list", raw(params({VERSION_KEY: FUTURE}))), None), -32022, 400)


FAULTS = [
    # (rung, code, what is wrong)
    ("sse", -32600, {"accepts_sse": False}),
    ("repeated", -32020, {"change": {"mcp-method": "a\na"}}),
    ("required", -32602, {"meta": {CAPABILITIES_KEY: None}}),
    ("mirrored", -32020, {"change": {"mcp-method": "other"}}),
    ("version", -32022, {"meta": {VERSION_KEY: FUTURE}, "change": {"mcp-protocol-version": FUTURE}}),
    ("level", -32602, {"meta": {LEVEL_KEY: "loud"}}),
]


@pytest.mark.parametrize("first", range(len(FAULTS)))
def test_the_first_rung_that_fails_is_the_answer(ask, first):
    faults = {"meta": {}, "change": {}, "accepts_sse": True}
    for _, _, wrong in reversed(FAULTS[first:]):
        for place, value in wrong.items():
            faults[place] = {**faults[place], **value} if isinstance(value, dict) else value
    assert ask("subscriptions/listen", notifications={}, **faults).error.code == FAULTS[first][1]


def test_the_rungs_are_climbed_before_the_method_is_looked_for(ask):
    for _, code, wrong in FAULTS[1:]:
        assert ask("no/such", **wrong).error.code == code


META = st.dictionaries(
    st.sampled_from([VERSION_KEY, CAPABILITIES_KEY, LEVEL_KEY, "progressToken"]),
    st.sampled_from([MODERN, FUTURE, {}, {"roots": {}}, 5, None, "info"]),
)
NAMES = st.sampled_from(["mcp-protocol-version", "mcp-method", "mcp-name", "other"])
METHODS = st.sampled_from(["tools/call", "tools/list", "subscriptions/listen", "ping", "x"])
VALUES = st.sampled_from([MODERN, FUTURE, "2025-11-25", "tools/call", "tools/list", "t", "t\nt", ""])


@st.composite
def frames(draw):
    body = draw(st.fixed_dictionaries({}, optional={"_meta": META, "name": st.sampled_from(["t", 5])}))
    method, params = draw(METHODS), Raw(json.dumps(body).encode())
    kind = draw(st.sampled_from([Request, Request, Request, Notification, Result]))
    if kind is Result:
        return Result(1, Raw(b"{}"))
    return kind(method, params) if kind is Notification else Request(1, method, params)


@given(frames(), st.none() | st.dictionaries(NAMES, VALUES), st.booleans())
def test_every_frame_has_exactly_one_route_or_rejection(frame, headers, accepts_sse):
    route = classify_modern.modern(frame, headers, accepts_sse)
    if isinstance(route, Rejection):
        assert 400 <= route.status < 500
        assert route.error.status == errors_status(route)
        assert json.loads(route.body).get("id") == (frame.id if isinstance(frame, Request) else None)
        return
    assert type(route) is (ModernNotification if isinstance(frame, Notification) else ModernRequest)
    if isinstance(route, ModernRequest):
        named = json.loads(bytes(frame.params))["_meta"][VERSION_KEY]
        assert named == route.envelope.version == MODERN
        if headers is not None:
            assert (headers["mcp-protocol-version"], headers["mcp-method"]) == (MODERN, frame.method)


def errors_status(route):
    return {-32601: 404}.get(route.error.code, 406 if route.error.kind == "not_acceptable" else 400)
