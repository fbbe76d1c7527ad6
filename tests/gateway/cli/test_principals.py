"""`stagedoor principals`, with an admin listener that says what the test wants."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result


@pytest.mark.parametrize(
    ("what", "said"), [("revoke", "ann has no access any more\n"), ("restore", "ann has access again\n")]
)
def test_access_is_taken_away_and_given_back(
    stagedoor: Callable[..., Result], composition: Any, what: str, said: str
) -> None:
    composition.told = [(200, {"principal": "ann", "revoked": what == "revoke"})] * 2
    assert stagedoor("principals", what, "ann").stdout == said
    assert json.loads(stagedoor("principals", what, "ann", "--json").stdout)["principal"] == "ann"
    assert composition.operated == [(what, "ann", {})] * 2


@pytest.mark.parametrize(("known", "warned"), [(True, False), (False, True)])
def test_that_nobody_has_that_name_is_told(
    stagedoor: Callable[..., Result], composition: Any, known: bool, warned: bool
) -> None:
    composition.told = [(200, {"principal": "anm", "revoked": True, "known": known})]
    result = stagedoor("principals", "revoke", "anm")
    assert (result.exit_code, "warning: no token" in result.stderr) == (0, warned)


def test_a_user_of_an_issuer_is_named_by_both(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(200, {"principal": "x", "revoked": True})]
    stagedoor("principals", "revoke", "ann", "--issuer", "https://idp.test")
    assert composition.operated == [("revoke", "16:https://idp.test:3:ann", {})]


def test_what_the_store_does_not_take_is_a_failure(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(503, {"error": "the store did not take it; try again"})]
    result = stagedoor("principals", "revoke", "ann")
    assert result.exit_code == 1
    assert "the store did not take it" in result.stderr


def test_who_loses_his_access_may_lose_his_accounts_too(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(200, {"principal": "ann", "revoked": True}), (200, {"disconnected": 2, "more": False})]
    assert stagedoor("principals", "revoke", "ann", "--accounts").exit_code == 0
    assert composition.operated == [("revoke", "ann", {}), ("accounts-disconnect", "", {"principal": "ann"})]
