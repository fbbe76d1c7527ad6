"""Whatever a server answers to the first request, the tables say which era it speaks, or that nothing was said."""

import pytest
from msgspec import Raw

from actors.machines.upstream.era import INITIALIZE, PROBE, Case, Verdict, of_error, of_failure, of_versions
from actors.protocol import payload as json


def error(code: int, **data: object) -> Raw:
    return json.dumps({"code": code, "message": "no", **({"data": data} if data else {})})


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (of_versions(["2026-07-28"]), Verdict.MODERN),
        (of_versions(["2026-07-28", "2025-11-25"]), Verdict.MODERN),
        (of_versions(["2025-11-25"]), Verdict.LEGACY),
        (of_versions([]), Verdict.LEGACY),
        (of_error(error(-32601)), Verdict.LEGACY),
        (of_error(error(-32601), 404), Verdict.LEGACY),
        (of_error(error(-32602), 400), Verdict.LEGACY),
        (of_error(error(-32000), 400), Verdict.LEGACY),
        (of_error(error(-32600), 400), Verdict.LEGACY),
        (of_failure("http_status", 404), Verdict.LEGACY),
        (of_failure("http_status", 405), Verdict.LEGACY),
        (of_failure("protocol", 202), Verdict.LEGACY),
        (of_failure("no_response"), Verdict.LEGACY),
        (of_failure("exited"), Verdict.LEGACY),
        (Case.SILENT, Verdict.LEGACY),
        (of_error(error(-32022, supported=["2025-11-25"], requested="2026-07-28"), 400), Verdict.LEGACY),
        (of_error(error(-32022, supported=["2026-07-28"], requested="x"), 400), Verdict.MODERN),
        (of_error(error(-32020), 400), Verdict.MODERN),
        (of_error(error(-32021), 400), Verdict.MODERN),
        (of_failure("http_status", 401), Verdict.NONE),
        (of_failure("http_status", 403), Verdict.NONE),
        (of_error(error(-32600), 403), Verdict.NONE),
        (of_failure("http_status", 429), Verdict.NONE),
        (of_failure("http_status", 307), Verdict.NONE),
        (of_failure("http_status", 500), Verdict.NONE),
        (of_error(error(-32603), 500), Verdict.NONE),
        (of_failure("connection_refused"), Verdict.NONE),
        (of_failure("connection_lost"), Verdict.NONE),
        (of_failure("spawn_failed"), Verdict.NONE),
    ],
)
def test_an_answer_to_the_probe_has_one_meaning(case: Case, verdict: Verdict) -> None:
    assert PROBE[case] is verdict


@pytest.mark.parametrize("code", [-32022, -32601, -32602, -32600, -32000])
def test_a_server_that_refuses_initialize_is_looked_at_in_the_other_era(code: int) -> None:
    assert INITIALIZE[of_error(error(code))] is Verdict.LOOK


@pytest.mark.parametrize("status", [401, 403, 407, 429, 500, 503])
def test_a_refusal_of_initialize_that_is_not_about_it_says_nothing(status: int) -> None:
    assert INITIALIZE[of_error(error(-32603), status)] is Verdict.NONE
    assert INITIALIZE[of_failure("http_status", status)] is Verdict.NONE


def test_every_case_has_a_verdict_in_both_tables() -> None:
    assert set(PROBE) == set(INITIALIZE) == set(Case)


def test_an_error_that_is_none_is_an_answer_that_is_none() -> None:
    assert of_error(Raw(b'"oops"')) is Case.UNREADABLE
    assert of_error(error(-32022, supported=3)) is Case.OTHER_VERSION
