"""The suite's scenarios about authorization, with the gateway in the place of the client."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.judging import EXTENSIONS, Verdicts
from tests.support.processes import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.node]

BOTH = (
    *(f"metadata-{name}" for name in ("default", "var1", "var2", "var3")),
    "basic-cimd",
    *(f"scope-{name}" for name in ("from-www-authenticate", "from-scopes-supported", "omitted-when-undefined")),
    "scope-step-up",
    "scope-retry-limit",
    *(f"token-endpoint-auth-{name}" for name in ("basic", "post", "none")),
    "pre-registration",
)
SCENARIOS = {
    "2025-03-26": ("2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"),
    "2025-11-25": BOTH,
    "2026-07-28": (
        *BOTH,
        "resource-mismatch",
        "offline-access-scope",
        "offline-access-not-supported",
        "authorization-server-migration",
        *(f"iss-{name}" for name in ("supported", "not-advertised", "supported-missing", "wrong-issuer", "unexpected")),
        "iss-normalized",
        "metadata-issuer-mismatch",
    ),
}


BUILT = ("client-credentials-basic", "client-credentials-jwt")
NOT_BUILT = ("dpop", "dpop-nonce", "enterprise-managed-authorization", "wif-jwt-bearer")
"""Extensions that the gateway does not have; docs/authorization.md says why."""

CLIENT = "gateway_client.py"


@pytest.mark.parametrize(("revision", "scenario"), [(r, s) for r, names in SCENARIOS.items() for s in names])
def test_the_gateway_authorizes_itself_as_a_client_does(
    revision: str, scenario: str, verdicts: Callable[[str, str], Verdicts]
) -> None:
    verdicts(CLIENT, revision).require(f"auth/{scenario}")


@pytest.mark.parametrize("revision", SCENARIOS)
def test_no_scenario_about_authorization_is_left_out(revision: str, verdicts: Callable[[str, str], Verdicts]) -> None:
    judged = {name for name in verdicts(CLIENT, revision).folders if name.startswith("auth/")}
    assert judged == {f"auth/{name}" for name in SCENARIOS[revision]}


def test_of_the_extensions_those_pass_that_are_built_and_the_others_are_listed(
    verdicts: Callable[[str, str], Verdicts],
) -> None:
    found = verdicts(CLIENT, EXTENSIONS)
    assert {*found.folders} == {f"auth/{name}" for name in (*BUILT, *NOT_BUILT)}
    for name in BUILT:
        found.require(f"auth/{name}")
    page = (ROOT / "docs" / "authorization.md").read_text()
    assert [name for name in NOT_BUILT if f"`{name}`" not in page] == []
