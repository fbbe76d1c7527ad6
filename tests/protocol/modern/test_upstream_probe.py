"""An upstream connection without sessions asks whom it speaks to before it says anything else."""

import pytest

from actors.machines.upstream import events as ev
from actors.machines.upstream import modern_events as mv
from actors.machines.upstream.modern_state import Phase
from tests.support.modern_upstream import DISCOVERED, Drive


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
    assert ready.server_info.version == "2026-07-28"
    assert ready.server_info.instructions == "be kind"
    assert b'"far"' in bytes(ready.server_info.implementation)
    assert mv.Judged(True) in drive.effects
    assert not drive.timers


def verdict(drive):
    """What was made of the answer, the only time."""
    (judged,) = [effect for effect in drive.effects if isinstance(effect, mv.Judged)]
    return judged


@pytest.mark.parametrize("code", [-32601, -32602, -32000, -32600])
def test_a_server_that_does_not_know_the_probe_gets_nothing_else(drive, code):
    drive.call(1)
    drive.error(drive.last("server/discover").id, code, 400)
    assert drive.upstream.phase is Phase.WRONG_ERA
    assert [called.call for called in drive.returned] == [1]
    assert (verdict(drive).modern, verdict(drive).sure) == (False, True)
    assert f"(error {code})" in verdict(drive).said
    assert not drive.outcomes
    assert len(drive.sent) == 1


def test_a_server_that_names_other_versions_only_is_of_the_other_era(drive):
    drive.call(1)
    drive.discovered(supportedVersions=["2025-11-25"])
    assert drive.upstream.phase is Phase.WRONG_ERA


def test_silence_is_an_answer(drive):
    drive.call(1)
    drive.due("probe")
    assert drive.upstream.phase is Phase.WRONG_ERA
    assert (verdict(drive).modern, verdict(drive).sure) == (False, False)


def starting(**more):
    """A process that was started a moment ago."""
    drive = Drive(False)
    drive.started = ev.Started(False, **({"starts": True} | more))
    drive.call(1)
    return drive


def test_the_silence_of_a_process_counts_from_its_first_sign_of_life():
    drive = starting()
    assert not drive.timers
    drive.step(mv.Spoke())
    assert drive.timers == {("probe",): 5.0}
    drive.due("probe")
    assert drive.upstream.phase is Phase.WRONG_ERA
    assert (verdict(drive).modern, verdict(drive).sure) == (False, False)


def test_a_process_that_says_nothing_at_all_has_the_connect_deadline():
    drive = starting()
    drive.step(ev.ConnectExpired())
    assert drive.upstream.phase is Phase.WRONG_ERA
    assert (verdict(drive).modern, verdict(drive).sure) == (False, False)
    assert [called.call for called in drive.returned] == [1]


def test_after_a_refusal_of_the_other_era_silence_is_no_verdict(drive):
    drive.started = ev.Started(drive.related, settled=True)
    drive.call(1)
    drive.due("probe")
    assert drive.upstream.phase is Phase.PROBING
    assert drive.count("server/discover") == 2, "the first one may be lost"
    assert not drive.timers
    drive.step(ev.ConnectExpired())
    assert drive.upstream.phase is Phase.IDLE
    assert drive.outcomes[1][1]["data"]["reason"] == "connect_timeout"
    assert not any(isinstance(effect, mv.Judged) for effect in drive.effects)


@pytest.mark.parametrize("which", [0, 1])
def test_either_of_two_probes_may_be_answered(drive, which):
    drive.started = ev.Started(drive.related, settled=True)
    drive.call(1, "tools/call", name="echo")
    drive.due("probe")
    probes = [sent.id for sent in drive.sent]
    drive.result(probes[which], DISCOVERED)
    assert drive.upstream.phase is Phase.READY
    drive.result(probes[1 - which], DISCOVERED)
    assert drive.upstream.phase is Phase.READY
    assert drive.count("tools/call") == 1


def test_nor_is_that_of_a_process_which_spoke():
    drive = starting(settled=True)
    drive.step(mv.Spoke())
    drive.due("probe")
    drive.step(ev.ConnectExpired())
    assert drive.outcomes[1][1]["data"]["reason"] == "connect_timeout"


@pytest.mark.parametrize("code", [-32601, -32602, -32022])
def test_a_process_that_refuses_the_probe_may_serve_the_other_era(code):
    drive = starting()
    drive.error(drive.last("server/discover").id, code, supported=["2025-11-25"])
    assert ev.HandOver() in drive.effects
    assert ev.Hang() not in drive.effects
    assert (verdict(drive).modern, verdict(drive).sure) == (False, True)


def test_one_that_is_silent_or_talks_nonsense_is_ended():
    drive = starting()
    drive.step(mv.Spoke())
    drive.due("probe")
    assert ev.Hang() in drive.effects
    assert ev.HandOver() not in drive.effects


def test_one_that_has_served_is_not_handed_over():
    drive = Drive(True).ready()
    drive.call(1, "tools/call", name="echo")
    drive.error(drive.last("tools/call").id, -32600, 400)
    drive.error(drive.last("server/discover").id, -32601, 400)
    assert drive.upstream.phase is Phase.WRONG_ERA
    assert ev.HandOver() not in drive.effects


def test_a_process_that_was_handed_over_and_ends_is_started_anew_once():
    drive = starting(starts=False, warm=True)
    drive.started = ev.Started(False, starts=True)
    drive.step(ev.Closed("exited", "it exits after a refusal"))
    assert drive.count("server/discover") == 2
    assert not drive.timers
    drive.step(ev.Closed("exited", "and again"))
    assert drive.upstream.phase is Phase.WRONG_ERA


def test_the_silence_of_an_earlier_probe_means_nothing(drive):
    drive.ready()
    drive.due("probe")
    assert drive.upstream.phase is Phase.READY


def test_an_html_404_is_an_answer_of_the_other_era():
    drive = Drive()
    drive.call(1)
    drive.fail(drive.last("server/discover").id, "http_status", "no", 404)
    assert drive.upstream.phase is Phase.WRONG_ERA


@pytest.mark.parametrize(
    ("reason", "status"),
    [("http_status", 401), ("http_status", 403), ("http_status", 502), ("connection_refused", None)],
)
def test_what_says_nothing_of_the_era_fails_the_calls_and_no_more(reason, status):
    drive = Drive()
    drive.call(1)
    drive.fail(drive.last("server/discover").id, reason, "no", status)
    assert drive.upstream.phase is Phase.IDLE
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
    assert drive.upstream.phase is Phase.IDLE
    assert drive.outcomes[1][0] is False


def test_a_process_that_ends_at_the_probe_is_of_the_other_era():
    drive = Drive(related=False)
    drive.call(1)
    drive.step(ev.Closed("exited", "exited with status 1"))
    assert drive.upstream.phase is Phase.WRONG_ERA


def test_a_process_that_was_handed_over_and_ends_in_doubt_owes_what_it_was_asked():
    drive = Drive(related=False, started=ev.Started(False, warm=True)).ready()
    drive.call(1)
    drive.call(2)
    drive.error(drive.last("tools/call").id, -32022, supported=["2026-07-28"], requested="2026-07-28")
    assert drive.upstream.phase is Phase.PROBING
    drive.step(ev.Closed("exited", "exited with status 1"))
    assert drive.outcomes[1][1]["data"]["executed"] == "unknown"
    assert [called.call for called in drive.returned] == [2]


def test_a_probe_that_ends_with_a_change_of_the_configuration_is_no_failure_of_the_server(drive):
    drive.call(1)
    drive.step(ev.Closed("unconfigured", "gone", counts=False))
    [down] = [effect for effect in drive.effects if isinstance(effect, ev.Down)]
    assert not down.counts
    assert drive.outcomes[1][1]["data"]["executed"] == "no"


def test_a_late_answer_to_the_probe_changes_nothing(drive):
    drive.call(1)
    probe = drive.last("server/discover")
    drive.due("probe")
    drive.result(probe.id, {"supportedVersions": ["2026-07-28"], "capabilities": {}})
    assert drive.upstream.phase is Phase.WRONG_ERA
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
    assert drive.upstream.phase is Phase.PROBING
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
