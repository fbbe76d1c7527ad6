"""`stagedoor accounts` and `stagedoor vault`, with an admin listener that says what the test wants."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

ACCOUNT = {
    "principal": "ann",
    "server": "tracker",
    "at": "https://t.example/mcp",
    "issuer": "https://idp.test",
    "connected": "2026-11-28T16:00:00+00:00",
    "used": True,
}


def test_accounts_are_listed_for_all_or_for_one(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(200, {"accounts": [ACCOUNT], "more": True})] * 2
    shown = stagedoor("accounts", "list")
    assert "ann" in shown.stdout
    assert "yes" in shown.stdout
    assert "there are more" in shown.stderr
    told = stagedoor("accounts", "list", "ann", "--issuer", "https://idp.test", "--server", "tracker", "--json")
    assert json.loads(told.stdout)["accounts"] == [ACCOUNT]
    assert composition.operated == [
        ("accounts", "", {"principal": "", "server": ""}),
        ("accounts", "", {"principal": "16:https://idp.test:3:ann", "server": "tracker"}),
    ]


def test_an_account_is_disconnected(stagedoor: Callable[..., Result], composition: Any) -> None:
    composition.told = [(200, {"disconnected": 1, "more": False}), (200, {"disconnected": 9, "more": True})]
    assert stagedoor("accounts", "disconnect", "ann", "tracker").stdout == "1 accounts of ann are disconnected\n"
    assert stagedoor("accounts", "disconnect", "ann").exit_code == 1
    assert composition.operated == [
        ("accounts-disconnect", "", {"principal": "ann", "server": "tracker"}),
        ("accounts-disconnect", "", {"principal": "ann", "server": ""}),
    ]


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"rewrapped": 3, "unreadable": 0, "clients": 1, "more": False}, 0),
        ({"rewrapped": 3, "unreadable": 1, "more": False}, 1),
        ({"rewrapped": 3, "unreadable": 0, "more": True}, 1),
    ],
)
def test_all_accounts_are_sealed_anew(
    stagedoor: Callable[..., Result], composition: Any, told: dict[str, Any], status: int
) -> None:
    composition.told = [(200, told)]
    shown = stagedoor("vault", "rewrap")
    assert shown.exit_code == status
    assert re.search("3 accounts and [01] registered clients are sealed by the first key", shown.stdout)
