"""Calls to a server without sessions: what goes out, and the one outcome that comes back."""

import pytest
from msgspec import Raw

from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_events as mv
from actors.machines.upstream.events import UNSENT_BYTES, UNSENT_MAX
from actors.machines.upstream.modern_calls import MIRRORS_MAX
from actors.protocol.messages import Result
from tests.support.modern_upstream import Drive, client

HEADED = {
    "name": "run",
    "inputSchema": {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
}
ILLEGAL = {
    "name": "bad",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}},
}


@pytest.fixture(params=[True, False], ids=["http", "stdio"])
def drive(request) -> Drive:
    return Drive(request.param).ready()


@pytest.fixture
def http() -> Drive:
    return Drive().ready()


def test_each_request_says_all_that_is_known_of_the_client(drive):
    drive.call(
        1, by=client(elicitation={}, level="info"), name="echo", _meta={"traceparent": "00-1", "progressToken": 7}
    )
    sent = drive.last("tools/call")
    assert sent.meta["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {}}
    assert sent.meta["io.modelcontextprotocol/clientInfo"] == {"name": "c", "version": "1"}
    assert sent.meta["io.modelcontextprotocol/logLevel"] == "info"
    assert sent.meta["traceparent"] == "00-1"
    assert "progressToken" not in sent.meta


def test_progress_comes_by_a_token_of_ours(drive):
    drive.call(1, progress=True)
    token = drive.last("tools/call").meta["progressToken"]
    assert token == drive.last("tools/call").id
    drive.notify("notifications/progress", progressToken=token, progress=1)
    drive.notify("notifications/progress", progressToken=7, progress=1)
    assert drive.told == [(1, "notifications/progress", {"progressToken": token, "progress": 1})]


@pytest.mark.parametrize("related", [True, False], ids=["on its stream", "elsewhere"])
def test_an_answer_for_what_was_not_asked_is_dropped_and_counted(drive, related):
    drive.call(1)
    asked = drive.last("tools/call").id
    for id in (asked + "0", "x", 7):
        message = Result(id, Raw(b'{"resultType":"complete"}'))
        drive.step(mv.Incoming(message, asked if related else None, None))
    assert drive.tallied == ["late_response"] * 3
    assert drive.outcomes == {}
    drive.result(asked, {"resultType": "complete"})
    assert list(drive.outcomes) == [1]


def test_headers_mirror_the_body(http):
    http.call(1, "resources/read", uri="test:///ä")
    headers = http.last("resources/read").headers
    assert headers["MCP-Protocol-Version"] == "2026-07-28"
    assert headers["Mcp-Method"] == "resources/read"
    assert headers["Mcp-Name"].startswith("=?base64?")


def test_a_method_that_no_header_carries_goes_to_servers_without_headers_only(drive):
    drive.call(1, "x\ny", by=client(drives=False))
    if drive.related:
        assert drive.outcomes[1][1]["code"] == -32601
    else:
        assert drive.last("x\ny")


def test_a_method_that_only_a_client_with_a_session_knows_is_sent_to_no_server_without(drive):
    drive.call(1, "acme/search")
    assert drive.outcomes[1][1]["code"] == -32601
    assert drive.count("acme/search") == 0


def test_a_notification_of_a_client_passes_with_headers_of_its_own(drive):
    drive.inform("acme/beat", seq=1, _meta={"of": "mine"})
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "acme/beat"} if drive.related else {}
    assert drive.notified == [("acme/beat", {"seq": 1, "_meta": {"of": "mine"}}, headers)]


def test_a_notification_that_no_header_carries_goes_to_servers_without_headers_only(drive):
    drive.inform("x\ny")
    assert [method for method, _, _ in drive.notified] == ([] if drive.related else ["x\ny"])
    assert drive.tallied == (["unsendable_notification"] if drive.related else [])


@pytest.mark.parametrize("related", [True, False])
def test_a_notification_brings_a_connection_and_waits_for_it_but_not_without_bound(related):
    drive = Drive(related)
    drive.inform("acme/beat", seq=0)
    assert drive.count("server/discover") == 1
    for seq in range(1, UNSENT_MAX + 3):
        drive.inform("acme/beat", seq=seq)
    assert not drive.notified
    assert drive.tallied == ["too_many_notifications"] * 3
    drive.call(1)
    drive.discovered()
    assert [params["seq"] for _, params, _ in drive.notified] == list(range(UNSENT_MAX))
    drive.inform("acme/beat", seq="next")
    assert drive.notified[-1][1] == {"seq": "next"}


def test_what_waits_of_notifications_is_bounded_in_bytes_and_one_alone_has_room():
    drive = Drive()
    drive.inform("acme/beat", text="x" * UNSENT_BYTES)
    drive.inform("acme/beat", text="x")
    assert drive.tallied == ["too_many_notifications"]
    drive.discovered()
    assert len(drive.notified) == 1


@pytest.mark.parametrize("text", ["", "x" * (UNSENT_BYTES // 8)], ids=["many", "large"])
def test_whoever_notifies_most_leaves_room_for_what_others_notify(text):
    drive = Drive()
    for seq in range(UNSENT_MAX + 1):
        drive.inform("acme/beat", "mallory", seq=seq, text=text)
    for name in ("alice", "bob"):
        drive.inform("acme/beat", name, of=name)
    drive.discovered()
    said = [params for _, params, _ in drive.notified]
    assert [params.get("of") for params in said[-2:]] == ["alice", "bob"]
    assert [params["seq"] for params in said[:-2]] == list(range(len(said) - 2))
    assert len(drive.tallied) + len(said) == UNSENT_MAX + 3


@pytest.mark.parametrize("era", [True, False])
def test_a_notification_for_a_server_that_does_not_come_or_is_of_the_other_era_is_dropped(era):
    drive = Drive()
    drive.inform("acme/beat")
    if era:
        drive.step(ev.Closed("connection_lost", "gone"))
    else:
        drive.error(drive.last("server/discover").id, -32601, 404)
        drive.inform("acme/beat")
    assert not drive.upstream.unsent
    assert not drive.notified
    dropped = ["lost_notification"] if era else ["unknown_notification", "Notified while unfit"]
    assert drive.tallied == dropped


def test_a_result_without_a_type_is_complete(drive):
    drive.call(1)
    drive.result(drive.last("tools/call").id, {"content": []})
    assert drive.outcomes[1] == (True, {"content": []})


@pytest.mark.parametrize("kind", ["task", "surprise", 3])
def test_a_result_of_an_unknown_type_is_no_answer(drive, kind):
    drive.call(1)
    drive.result(drive.last("tools/call").id, {"resultType": kind})
    assert drive.outcomes[1][1]["code"] == -32603


def test_a_task_is_an_answer_for_who_declared_them(drive):
    extension = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    drive.call(1, by=client(drives=False, **extension))
    drive.result(drive.last("tools/call").id, {"resultType": "task", "taskId": "t"})
    assert drive.outcomes[1][0]


def test_errors_pass_with_any_http_status(http):
    http.call(1)
    http.error(http.last("tools/call").id, -32602, 400, uri="x")
    assert http.outcomes[1] == (False, {"code": -32602, "message": "no", "data": {"uri": "x"}})


def test_an_error_without_an_id_belongs_to_its_stream(http):
    from actors.protocol.messages import Error

    http.call(1)
    sent = http.last("tools/call")
    http.step(mv.Incoming(Error(None, Raw(b'{"code":-32603,"message":"oh"}')), sent.id, 200))
    assert http.outcomes[1][1]["message"] == "oh"


@pytest.mark.parametrize("method", ["tools/list", "resources/read", "prompts/get", "completion/complete"])
def test_what_changes_nothing_is_asked_once_more_when_its_stream_breaks(http, method):
    http.call(1, method, name="n", uri="u")
    first = http.last(method)
    http.fail(first.id)
    second = http.last(method)
    assert second.id != first.id
    http.result(first.id, {"late": True})
    assert not http.outcomes
    http.fail(second.id)
    assert http.outcomes[1][1]["data"]["executed"] == "unknown"


def test_a_tool_is_never_called_twice(http):
    http.call(1)
    http.fail(http.last("tools/call").id)
    assert http.count("tools/call") == 1
    assert http.outcomes[1][1]["data"] == {"reason": "connection_lost", "executed": "unknown"}


def test_a_cancel_closes_the_stream_over_http(http):
    http.call(1)
    sent = http.last("tools/call")
    http.step(ev.Abandoned(1, "enough"))
    assert http.cancelled == [sent.id]
    http.result(sent.id, {})
    assert not http.outcomes


def test_a_cancel_is_a_notification_on_stdio():
    drive = Drive(related=False).ready()
    drive.call(1)
    effects = drive.step(ev.Abandoned(1, "enough"))
    assert any(isinstance(e, ev.Send) and b"notifications/cancelled" in e.frame for e in effects)


def test_the_end_of_the_process_loses_what_was_sent_and_no_more():
    drive = Drive(related=False).ready()
    drive.call(1)
    drive.step(ev.Closed("exited", "exited with status 1"))
    assert drive.outcomes[1][1]["data"]["executed"] == "unknown"
    drive.call(2)
    drive.discovered()
    drive.result(drive.last("tools/call").id, {})
    assert drive.outcomes[2][0]


def test_what_sessions_have_is_answered_here(drive):
    drive.call(1, "ping")
    drive.call(2, "logging/setLevel", level="info")
    drive.call(3, "logging/setLevel", level="loud")
    assert [drive.outcomes[n][0] for n in (1, 2, 3)] == [True, True, False]
    assert len(drive.sent) == 1


# Headers of tools --------------------------------------------------------------------------------------------


def test_a_tool_that_no_client_could_call_is_left_out_of_the_list(http):
    http.call(1, "tools/list")
    http.result(http.last("tools/list").id, {"tools": [HEADED, ILLEGAL, {"name": "plain"}]})
    assert [tool["name"] for tool in http.outcomes[1][1]["tools"]] == ["run", "plain"]
    assert [effect.tool for effect in http.effects if isinstance(effect, mv.LeftOut)] == ["bad"]


def test_over_stdio_there_are_no_headers_and_so_no_illegal_ones():
    drive = Drive(related=False).ready()
    drive.call(1, "tools/list")
    drive.result(drive.last("tools/list").id, {"tools": [ILLEGAL]})
    assert len(drive.outcomes[1][1]["tools"]) == 1


def test_arguments_that_a_list_has_named_go_into_headers(http):
    http.call(1, "tools/list")
    http.result(http.last("tools/list").id, {"tools": [HEADED]})
    http.call(2, name="run", arguments={"region": "eu"})
    assert http.last("tools/call").headers["Mcp-Param-Region"] == "eu"


def test_a_mismatch_fetches_the_list_and_tries_once_more(http):
    http.call(1, name="run", arguments={"region": "eu"})
    http.error(http.last("tools/call").id, -32020, 400)
    http.result(http.last("tools/list").id, {"tools": [], "nextCursor": ""})
    assert http.last("tools/list").params["cursor"] == ""
    http.result(http.last("tools/list").id, {"tools": [HEADED]})
    assert http.last("tools/call").headers["Mcp-Param-Region"] == "eu"
    http.error(http.last("tools/call").id, -32020, 400)
    assert http.outcomes[1][1]["code"] == -32603


def test_a_list_that_does_not_come_holds_up_no_call_for_ever(http):
    http.call(1, name="run")
    http.error(http.last("tools/call").id, -32020, 400)
    http.due("refresh", http.last("tools/list").id)
    assert http.count("tools/call") == 2


# Logs --------------------------------------------------------------------------------------------------------


def test_logs_go_to_the_request_on_whose_stream_they_come(http):
    http.call(1, by=client(level="info"))
    http.call(2)
    first, second = [sent.id for sent in http.sent if sent.method == "tools/call"]
    http.notify("notifications/message", related=first, data="a")
    http.notify("notifications/message", related=second, data="nobody asked")
    assert http.told == [(1, "notifications/message", {"data": "a"})]


def test_on_a_shared_channel_logs_are_asked_for_by_one_principal_only():
    drive = Drive(related=False).ready()
    drive.call(1, by=client(drives=False, level="info"))
    drive.notify("notifications/message", data="first")
    drive.call(2, by=client(drives=False, level="info"))
    drive.notify("notifications/message", data="whose?")
    drive.call(3, by=client(drives=False, level="info", principal="bob"))
    assert "io.modelcontextprotocol/logLevel" not in drive.last("tools/call").meta
    drive.call(4, by=client(drives=False, level="info"))
    assert "io.modelcontextprotocol/logLevel" not in drive.last("tools/call").meta
    assert drive.told == [(1, "notifications/message", {"data": "first"})]


def test_the_logs_of_a_session_that_is_alone_are_the_session_s():
    drive = Drive(related=False).ready()
    drive.call(1, by=client(level="info"))
    drive.call(2, by=client(level="info"))
    drive.notify("notifications/message", data="x")
    assert drive.told == [("s1", "notifications/message", {"data": "x"})]


# What may be kept --------------------------------------------------------------------------------------------


def test_only_whole_answers_to_first_requests_may_be_kept(drive):
    drive.call(1, "resources/read", uri="a")
    drive.result(drive.last("resources/read").id, {"contents": [], "ttlMs": 9, "cacheScope": "public"})
    drive.call(2, "resources/read", by=client(drives=False), uri="a", inputResponses={}, requestState="s")
    drive.result(drive.last("resources/read").id, {"contents": []})
    kept = [effect for effect in drive.effects if isinstance(effect, mv.Keep)]
    assert [keep.method for keep in kept][:1] == ["resources/read"]
    drive.call(3, "resources/read", by=client(drives=False), uri="a")
    drive.result(drive.last("resources/read").id, {"resultType": "input_required", "requestState": "s"})
    assert drive.outcomes[3][1]["resultType"] == "input_required"


def test_what_a_server_wants_in_headers_is_remembered_up_to_a_bound(http):
    for page in range(3):
        http.call(page, "tools/list")
        http.result(http.last("tools/list").id, {"tools": [{**HEADED, "name": f"{page}-{n}"} for n in range(2000)]})
    assert len(http.upstream.mirrors) == MIRRORS_MAX
    for call, name, mirrored in ((10, "0-0", False), (11, "1-1999", True), (12, "2-1999", True)):
        http.call(call, name=name, arguments={"region": "eu"})
        assert ("Mcp-Param-Region" in http.last("tools/call").headers) is mirrored
