"""`stagedoor explain` and `stagedoor policy test`."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

RULES = [
    {"who": {"groups": ["dev"]}, "allow": ["github:*", "resource:github:file:///pub/*"]},
    {"deny": ["*:delete_*"]},
    {"scopes": {"github:create_*": ["repo:write"]}},
    {"who": {"groups": ["dev"]}, "allow": ["prompt:github:*"], "when": "args.n < 3"},
]
TOKENS = {"ann": {"token": "a" * 32, "groups": ["dev"]}, "bot": "b" * 32}


def config(**gateway: Any) -> str:
    said = {"auth": {"tokens": TOKENS}, "policy": RULES, **gateway}
    return json.dumps({"mcpServers": {"github": {"command": "sh"}}, "gateway": said})


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (["ann", "github:read"], "allow: policy[0]: allow github:*\n"),
        (["ann", "github:delete_repo"], "deny: policy[1]: deny *:delete_*\n"),
        (["ann", "github:create_x"], "step-up: policy[2]: scopes\nneeds the scopes: repo:write\n"),
        (["ann", "github:create_x", "--scope", "repo:write"], "allow: policy[0]: allow github:*\n"),
        (["bot", "github:read"], "deny: no rule allows it\n"),
        (["bot", "github:read", "--group", "dev"], "allow: policy[0]: allow github:*\n"),
        (["ann", "resource:github:file:///pub/../x"], "deny: the URI could be read as another one\n"),
        (
            ["ann", "prompt:github:x", "--args", '{"n": 5}'],
            "deny: policy[3]: its condition is not met\nthe arguments have to meet: args.n < 3\n",
        ),
        (["ann", "prompt:github:x", "--args", '{"n": 1}'], "allow: policy[3]: allow prompt:github:*\n"),
        (
            ["ann", "prompt:github:x"],
            "allow: policy[3]: allow prompt:github:*\n"
            "depends on the arguments (--args): policy[3]: allow prompt:github:* when args.n < 3\n",
        ),
    ],
)
def test_explain_says_what_comes_of_it_and_which_rule_decides(
    stagedoor: Callable[..., Result], file: Callable[[str], str], asked: list[str], answer: str
) -> None:
    result = stagedoor("explain", "--config", file(config()), *asked)
    assert (result.exit_code, result.stdout) == (0, answer)


def test_explain_says_what_the_arguments_may_refuse(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    name = file(config(policy=[*RULES, {"deny": ["github:*"], "when": "args.force"}]))
    told = json.loads(stagedoor("explain", "--config", name, "--json", "ann", "github:read").stdout)
    assert (told["decision"], told["conditions"]) == ("allow", ["policy[4]: deny github:* when args.force"])
    deny = "resource:github:file:///pub/b"
    name = file(config(policy=[*RULES, {"deny": [deny], "when": "args.force"}]))
    spelled = "resource:github:file:///pub/%62"
    told = json.loads(stagedoor("explain", "--config", name, "--json", "ann", spelled).stdout)
    assert told["conditions"] == [f"policy[4]: deny {deny} when args.force"]


def test_explain_says_how_often(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    limits = {"limits": {"github:*": ["9/min", "5/day"], "/mcp*": "60/min"}}
    name = file(config(policy=[*RULES, limits]))
    assert stagedoor("explain", "--config", name, "ann", "github:read").stdout == (
        "allow: policy[0]: allow github:*\n"
        "limited by policy[4]: github:*: 9/min for each principal\n"
        "limited by policy[4]: github:*: 5/day for each principal\n"
        "limited by policy[4]: /mcp*: 60/min for each principal\n"
    )
    assert stagedoor("explain", "--config", name, "bot", "github:read").stdout == "deny: no rule allows it\n"
    told = json.loads(stagedoor("explain", "--config", name, "--json", "ann", "resource:github:file:///pub/x").stdout)
    assert told["limits"] == ["policy[4]: /mcp*: 60/min for each principal"]


def test_explain_knows_what_the_server_itself_leaves_out(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    servers = {"github": {"command": "sh", "disabledTools": ["drop_*"]}}
    said = {
        "policy": [{"allow": ["*:*"]}, {"deny": ["github:delete_*"]}],
        "policyMode": "observe",
        "auth": {"tokens": TOKENS},
    }
    name = file(json.dumps({"mcpServers": servers, "gateway": said}))

    def explained(item: str) -> str:
        return stagedoor("explain", "--config", name, "ann", item).stdout

    assert explained("github:read") == "allow: policy[0]: allow *:*\n"
    assert explained("github:drop_all") == "deny: mcpServers.github.disabledTools\n"
    assert explained("gihtub:read") == "deny: there is no server of this name\n"
    observed = 'nothing is refused by that: `policyMode` is "observe"\n'
    assert explained("github:delete_x") == f"deny: policy[1]: deny github:delete_*\n{observed}"


def test_explain_answers_programs_in_json(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    result = stagedoor("explain", "--config", file(config()), "--json", "ann", "github:create_x")
    assert json.loads(result.stdout) == {"decision": "step-up", "rule": "policy[2]: scopes", "scopes": ["repo:write"]}


def test_without_rules_all_is_allowed(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    name = file('{"mcpServers": {"github": {"command": "sh"}}}')
    assert stagedoor("explain", "--config", name, "anonymous", "github:x").stdout == "allow: no policy\n"


@pytest.mark.parametrize("asked", [["anne", "github:x"], ["ann", "github"], ["ann", "github:x", "--args", "[]"]])
def test_explain_refuses_who_and_what_there_is_not(
    stagedoor: Callable[..., Result], file: Callable[[str], str], asked: list[str]
) -> None:
    assert stagedoor("explain", "--config", file(config()), *asked).exit_code == 2


def test_cases_that_are_as_expected_pass(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    cases = [{"as": {"principal": "ann"}, "item": "github:read", "expect": "allow"}]
    result = stagedoor("policy", "test", "--config", file(config(policyTests=cases)))
    assert (result.exit_code, result.stdout) == (0, "1 of 1 cases are as expected\n")


def test_a_case_that_is_not_as_expected_is_named(stagedoor: Callable[..., Result], file: Callable[[str], str]) -> None:
    cases = [
        {"as": {"principal": "ann"}, "item": "github:read", "expect": "allow"},
        {"as": {"principal": "bot"}, "item": "github:read", "expect": "allow"},
    ]
    result = stagedoor("policy", "test", "--config", file(config(policyTests=cases)))
    assert result.exit_code == 1
    assert result.stderr == "policyTests[1]: bot github:read: expected allow, is deny (no rule allows it)\n"


def test_a_case_of_a_server_that_there_is_not_is_an_error_at_start(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    cases = [{"as": {"principal": "ann"}, "item": "gihtub:read", "expect": "deny"}]
    result = stagedoor("check", file(config(policyTests=cases)))
    assert result.exit_code == 2
    assert "policyTests[0].item: there is no such server" in result.stderr
    assert "github" in result.stderr


def test_claims_of_a_token_are_given_for_conditions(
    stagedoor: Callable[..., Result], file: Callable[[str], str]
) -> None:
    user = "https://idp.test#ann"
    when = "has(claims.department) && claims.department == 'it'"
    case = {"as": {"principal": user, "claims": {"department": "it"}}, "item": "github:x", "expect": "allow"}
    other = {"as": {"principal": user}, "item": "github:x", "expect": "deny"}
    auth = {"issuers": [{"issuer": "https://idp.test"}]}
    rules = [{"allow": ["github:*"], "when": when}]
    name = file(config(auth=auth, policy=rules, policyTests=[case, other], publicUrl="https://mcp.test"))
    assert stagedoor("policy", "test", "--config", name).exit_code == 0
    for department, outcome in (("it", "allow"), ("hr", "deny")):
        claims = json.dumps({"department": department})
        shown = stagedoor("explain", "--config", name, user, "github:x", "--claims", claims).stdout
        assert shown.startswith(outcome)
    assert stagedoor("explain", "--config", name, user, "github:x", "--claims", "[]").exit_code == 2
