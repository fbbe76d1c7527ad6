"""A link without sessions asks whom it speaks to before it says anything else."""

import pytest

from actors.protocol import link_events as ev
from actors.protocol.modern import link_events as mv
from actors.protocol.modern.link_table import Phase
from tests.support.modern_link import Drive


@pytest.fixture(params=[True, False], ids=["http", "stdio"])
def drive(request) -> Drive:
    return Drive(request.param)


def test_only_the_probe_is_sent_before_the_era_is_known(drive):
    drive.call(1, "tools/call", name="echo")
    assert [sent.method for sent in drive.sent] == ["server/discover"]
    drive.discovered()
    assert [sent.method for sent in drive.sent] == ["server/discover", "tools/call"]


def test_a_modern_server_is_introduced_as_any_other(drive):
    drive.ready()
    [ready] = [effect for effect in drive.effects if isinstance(effect, ev.Ready)]
    assert ready.hello.version == "2026-07-28"
    assert ready.hello.instructions == "be kind"
    assert b'"far"' in bytes(ready.hello.server_info)
    assert mv.Judged(True) in drive.effects
    assert not drive.timers


@pytest.mark.parametrize("code", [-32601, -32602, -32000, -32600])
def test_a_server_that_does_not_know_the_probe_gets_nothing_else(drive, code):
    drive.call(1)
    drive.error(drive.last("server/discover").id, code, 400)
    assert drive.link.phase is Phase.UNFIT
    assert [called.call for called in drive.returned] == [1]
    assert mv.Judged(False) in drive.effects
    assert not drive.outcomes
    assert len(drive.sent) == 1


def test_a_server_that_names_other_versions_only_is_of_the_other_era(drive):
    drive.call(1)
    drive.discovered(supportedVersions=["2025-11-25"])
    assert drive.link.phase is Phase.UNFIT


def test_silence_is_an_answer(drive):
    drive.call(1)
    drive.due("probe")
    assert drive.link.phase is Phase.UNFIT
    assert mv.Judged(False) in drive.effects


def test_the_silence_of_an_earlier_probe_means_nothing(drive):
    drive.ready()
    drive.due("probe")
    assert drive.link.phase is Phase.READY


def test_an_html_404_is_an_answer_of_the_other_era():
    drive = Drive()
    drive.call(1)
    drive.fail(drive.last("server/discover").id, "http_status", "no", 404)
    assert drive.link.phase is Phase.UNFIT


@pytest.mark.parametrize(
    ("reason", "status"),
    [("http_status", 401), ("http_status", 403), ("http_status", 502), ("connection_refused", None)],
)
def test_what_says_nothing_of_the_era_fails_the_calls_and_no_more(reason, status):
    drive = Drive()
    drive.call(1)
    drive.fail(drive.last("server/discover").id, reason, "no", status)
    assert drive.link.phase is Phase.IDLE
    assert not any(isinstance(effect, mv.Judged) for effect in drive.effects)
    ok, error = drive.outcomes[1]
    assert not ok
    assert error["code"] == -32603
    assert error["data"]["executed"] == "no"


def test_a_modern_refusal_of_the_probe_is_tried_once_more(drive):
    drive.call(1)
    drive.error(drive.last("server/discover").id, -32020, 400)
    assert drive.count("server/discover") == 2
    drive.error(drive.last("server/discover").id, -32020, 400)
    assert drive.link.phase is Phase.IDLE
    assert drive.outcomes[1][0] is False


def test_a_process_that_ends_at_the_probe_is_of_the_other_era():
    drive = Drive(related=False)
    drive.call(1)
    drive.step(ev.Closed("exited", "exited with status 1"))
    assert drive.link.phase is Phase.UNFIT


def test_a_late_answer_to_the_probe_changes_nothing(drive):
    drive.call(1)
    probe = drive.last("server/discover")
    drive.due("probe")
    drive.result(probe.id, {"supportedVersions": ["2026-07-28"], "capabilities": {}})
    assert drive.link.phase is Phase.UNFIT
    drive.step(mv.Reconsidered())
    drive.call(2)
    drive.discovered()
    assert drive.last("tools/call").id


def test_a_call_after_the_verdict_goes_back_at_once(drive):
    drive.call(1)
    drive.due("probe")
    drive.call(2)
    assert [called.call for called in drive.returned] == [1, 2]


def test_a_refused_version_asks_again_and_sends_the_call_once_more(drive):
    drive.ready()
    drive.call(1)
    drive.error(drive.last("tools/call").id, -32022, 400, supported=["2026-07-28"], requested="2026-07-28")
    assert mv.Judged(None) in drive.effects
    assert drive.link.phase is Phase.PROBING
    drive.discovered()
    assert drive.count("tools/call") == 2
    drive.error(drive.last("tools/call").id, -32022, 400, supported=[], requested="2026-07-28")
    assert drive.outcomes[1][1]["code"] == -32603


def test_a_server_that_was_rolled_back_gives_the_call_to_the_other_era():
    drive = Drive().ready()
    drive.call(1)
    drive.error(drive.last("tools/call").id, -32000, 400)
    drive.error(drive.last("server/discover").id, -32601, 404)
    assert [called.call for called in drive.returned] == [1]


def test_calls_that_are_out_when_the_era_changes_have_an_unknown_outcome():
    drive = Drive().ready()
    drive.call(1)
    drive.call(2)
    drive.error(drive.last("tools/call").id, -32000, 400)
    drive.error(drive.last("server/discover").id, -32601, 404)
    assert drive.outcomes[1][1]["data"]["executed"] == "unknown"
    assert [called.call for called in drive.returned] == [2]
