"""Rules as a configuration has them: what they come to, and which are refused since they could never match."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from actors.protocol.policy import Asked, ConditionError, decide
from actors.protocol.rights import Rights, principal_id
from gateway.config import Problem, Settings
from gateway.config.conditions import CelCondition
from gateway.config.policies import caller, explained

SERVERS = {"files": {"command": "sh", "disabledTools": ["rm*"]}, "github": {"command": "sh"}}
TOKENS = {"ann": {"token": "a" * 32, "groups": ["dev"], "scopes": ["read"]}, "bot": "b" * 32}


def config(*rules: dict[str, Any], **gateway: Any) -> str:
    return json.dumps({"mcpServers": SERVERS, "gateway": {"auth": {"tokens": TOKENS}, "policy": rules, **gateway}})


def said(settings: Settings, name: str, item: str, args: Any = None) -> str:
    return explained(settings.table.policy, *caller(name, (), (), "", settings.callers), item, args).outcome


def test_without_rules_there_is_no_policy(settings: Callable[..., Settings]) -> None:
    assert settings(json.dumps({"mcpServers": SERVERS})).table.policy is None


def test_an_empty_list_of_rules_denies_everything(settings: Callable[..., Settings]) -> None:
    assert said(settings(config()), "ann", "github:x") == "deny"


def test_rules_are_read_as_they_are_written(settings: Callable[..., Settings]) -> None:
    found = settings(
        config(
            {"who": {"groups": ["dev"]}, "allow": ["github:*", "prompt:github:*", "resource:files:file:///pub/*"]},
            {"deny": ["*:delete_*"]},
            {"who": {"principals": ["ann"]}, "scopes": {"github:create_*": ["repo:write"]}},
        )
    )
    asked = ["github:x", "github:delete_x", "prompt:github:x", "resource:files:file:///pub/a", "github:create_x"]
    assert [said(found, "ann", item) for item in asked] == ["allow", "deny", "allow", "allow", "step-up"]
    assert {said(found, "bot", item) for item in asked} == {"deny"}
    assert found.table.policy is not None
    assert found.table.policy.enforced


def test_what_names_and_cursors_depend_on_changes_with_the_rules(settings: Callable[..., Settings]) -> None:
    digests = {settings(config(*rules)).table.digest for rules in ((), ({"allow": ["github:*"]},))}
    assert len({*digests, settings(json.dumps({"mcpServers": SERVERS})).table.digest}) == 3


def test_observing_is_said_in_the_policy(settings: Callable[..., Settings]) -> None:
    policy = settings(config({"allow": ["github:*"]}, policyMode="observe")).table.policy
    assert policy is not None
    assert not policy.enforced


@pytest.mark.parametrize(
    ("rule", "field", "words"),
    [
        ({"allow": ["gitub:*"]}, "allow[0]", 'no such server; did you mean "github"'),
        ({"allow": ["github:*", "files:rm"]}, "allow[1]", "`disabledTools` of the server leave it out"),
        ({"allow": ["github:x"], "deny": ["github:*"]}, "allow[0]", "`github:*` is denied"),
        ({"allow": ["github:[z-a]"]}, "allow[0]", "a set of characters in it is empty"),
        ({"allow": ["resource:files:file:///a/../b"]}, "allow[0]", "are denied anyway"),
        ({"scopes": {"files:x": ["s"]}}, "scopes.files:x", "no rule allows any of it"),
        ({"who": {"groups": ["devs"]}, "allow": ["github:*"]}, "who.groups[0]", 'did you mean "dev"'),
        ({"who": {"groups": []}, "allow": ["github:*"]}, "who.groups", "for nobody"),
        ({"who": {"principals": ["anne"]}, "allow": ["github:*"]}, "who.principals[0]", 'did you mean "ann"'),
        ({"who": {"scopes": ["write"]}, "allow": ["github:*"]}, "who.scopes[0]", "no token has this scope"),
        ({"who": {"clients": ["app"]}, "allow": ["github:*"]}, "who.clients[0]", "no issuer is configured"),
        ({"who": {"groups": ["dev"]}}, "", "names nothing"),
        ({"allow": ["github:*"], "scopes": {"github:x": ["a b"]}}, "scopes.github:x", "must be a list of scopes"),
        ({"allow": ["github:*"], "scopes": {"github:x": []}}, "scopes.github:x", "must be a list of scopes"),
        ({"allow": ["github"]}, "allow[0]", "must be SERVER:NAME"),
        ({"allow": ["github:*"], "when": "arg.x"}, "when", 'there is no variable "arg"'),
        ({"allow": ["github:*"], "when": "args.x <"}, "when", "parse"),
        ({"allow": ["github:*"], "when": "nonsense(args)"}, "when", "Undefined"),
        ({"alow": ["github:*"]}, "alow", 'did you mean "allow"'),
    ],
)
def test_a_rule_that_can_never_match_is_refused(
    problems: Callable[..., list[Problem]], rule: dict[str, Any], field: str, words: str
) -> None:
    found = [p for p in problems(config(rule)) if words in str(p)]
    assert [p.field for p in found] == [f"gateway.policy[0]{f'.{field}' if field else ''}"]


def test_what_a_rule_for_others_denies_may_still_match(settings: Callable[..., Settings]) -> None:
    found = settings(config({"allow": ["github:x"]}, {"who": {"groups": ["dev"]}, "deny": ["github:*"]}))
    assert (said(found, "ann", "github:x"), said(found, "bot", "github:x")) == ("deny", "allow")


def test_cases_are_read_with_the_rights_of_their_tokens(settings: Callable[..., Settings]) -> None:
    cases = [
        {"as": {"principal": "ann"}, "item": "github:x", "expect": "allow"},
        {"as": {"principals": ["bot"], "groups": ["g"]}, "item": "prompt:github:x", "args": {"a": 1}, "expect": "deny"},
    ]
    ann, bot = settings(config({"allow": ["github:*"]}, policyTests=cases)).policy_tests
    assert (ann.principal, ann.rights.groups, ann.rights.scopes) == ("ann", {"dev"}, {"read"})
    assert (bot.principal, bot.rights.groups, bot.args, bot.expect) == ("bot", {"g"}, {"a": 1}, "deny")


@pytest.mark.parametrize(
    ("case", "field"),
    [
        ({"as": {"principal": "anne"}, "item": "github:x", "expect": "allow"}, "as.principal"),
        ({"as": {"principal": "ann"}, "item": "github", "expect": "allow"}, "item"),
        ({"as": {"principal": "ann"}, "item": "github:x", "expect": "yes"}, "expect"),
        ({"as": {"principal": "ann"}, "item": "github:x"}, "expect"),
    ],
)
def test_a_case_that_makes_no_sense_is_refused(
    problems: Callable[..., list[Problem]], case: dict[str, Any], field: str
) -> None:
    (problem,) = problems(config({"allow": ["github:*"]}, policyTests=[case]))
    assert problem.field == f"gateway.policyTests[0].{field}"


def test_users_of_an_issuer_are_named_by_issuer_and_subject(settings: Callable[..., Settings]) -> None:
    from gateway.config.settings import Callers

    callers = Callers({"ann": Rights()}, ("https://idp.example",))
    name, rights = caller("https://idp.example#u1", ["dev"], [], "app", callers)
    assert name == principal_id("https://idp.example", "u1")
    assert rights == Rights("https://idp.example", "u1", "app", frozenset({"dev"}))
    with pytest.raises(ValueError, match="nobody has this name"):
        caller("https://other.example#u1", [], [], "", callers)


# Conditions ------------------------------------------------------------------------------------------------------


def test_a_condition_asks_about_the_call_and_its_caller(settings: Callable[..., Settings]) -> None:
    when = "args.n < 3 && 'dev' in groups && server == 'github' && tool.startsWith('q') && principal == 'ann'"
    policy = settings(config({"allow": ["github:*"], "when": when})).table.policy
    dev = Rights(groups=frozenset({"dev"}))
    assert decide(policy, "ann", dev, "tool", "github", "query", Asked({"n": 1})).allowed
    assert decide(policy, "ann", dev, "tool", "github", "query", Asked({"n": 4})).constraint == when
    assert not decide(policy, "ann", Rights(), "tool", "github", "query", Asked({"n": 1})).allowed
    assert decide(policy, "ann", dev, "tool", "github", "query", Asked({"n": "x"})).failed


def test_a_condition_may_name_the_elements_of_a_list() -> None:
    condition = CelCondition("args.paths.all(p, p.startsWith('/pub/'))")
    assert {variable.value for variable in condition.variables} == {"args"}
    assert condition.holds({"args": {"paths": ["/pub/a"]}})
    assert not condition.holds({"args": {"paths": ["/pub/a", "/etc"]}})


@pytest.mark.parametrize("args", [{}, {"n": None}, {"n": []}, {"n": "a"}, {"n": {"x": 1}}])
def test_a_condition_without_an_answer_fails(args: dict[str, Any]) -> None:
    with pytest.raises(ConditionError):
        CelCondition("args.n < 3").holds({"args": args})


def test_a_condition_that_is_no_yes_or_no_fails() -> None:
    with pytest.raises(ConditionError, match="neither true nor false"):
        CelCondition("size(args)").holds({"args": {}})


def test_without_the_library_a_condition_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cel", None)
    with pytest.raises(ValueError, match=r"stagedoor\[policy\]"):
        CelCondition("true")
