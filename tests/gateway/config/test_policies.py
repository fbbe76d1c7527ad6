"""Rules as a configuration has them: what they come to, and which are refused since they could never match."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.protocol.policy import ConditionError, Facts, decide
from actors.protocol.rights import Rights, principal_id
from gateway.config import Problem, Settings, advice, load
from gateway.config.conditions import CelCondition
from gateway.config.policies import caller, explained

SERVERS = {"files": {"command": "sh", "disabledTools": ["rm*"]}, "github": {"command": "sh"}}
TOKENS = {"ann": {"token": "a" * 32, "groups": ["dev"], "scopes": ["read"]}, "bot": "b" * 32}


def config(*rules: dict[str, Any], **gateway: Any) -> str:
    return json.dumps({"mcpServers": SERVERS, "gateway": {"auth": {"tokens": TOKENS}, "policy": rules, **gateway}})


def said(settings: Settings, name: str, item: str, args: Any = None) -> str:
    return explained(settings.table, *caller(name, (), (), "", settings.callers), item, args).outcome


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


@pytest.mark.parametrize("broken", ["{} <", "args.x == '{}' &&& true", "claims['{}'"])
def test_a_condition_that_can_not_be_read_is_told_without_what_came_from_elsewhere(
    problems: Callable[..., tuple[Problem, ...]], tmp_path: Path, broken: str
) -> None:
    (tmp_path / "secret").write_text("from-a-file-9\nits second line")
    for reference in ("${SECRET}", f"${{file:{tmp_path}/secret}}"):
        given = config({"allow": ["github:*"], "when": broken.replace("{}", reference)})
        (wrong,) = problems(given, SECRET="s3cret value")
        assert wrong.field.endswith("policy[0].when")
        assert not any(part in str(wrong) for part in ("s3cret", "from-a-file", "second line"))


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
        ({"who": {"groups": ["dev"], "principals": ["bot"]}, "allow": ["github:*"]}, "who", "one of each of these"),
        ({"who": {"groups": ["dev"]}}, "", "names nothing"),
        ({"allow": ["github:*"], "scopes": {"github:x": ["a b"]}}, "scopes.github:x", "must be a list of scopes"),
        ({"allow": ["github:*"], "scopes": {"github:x": []}}, "scopes.github:x", "must be a list of scopes"),
        ({"allow": ["github"]}, "allow[0]", "must be SERVER:NAME"),
        ({"allow": ["github:*"], "when": "arg.x"}, "when", 'there is no variable "arg"'),
        ({"allow": ["github:*"], "when": "args.x <"}, "when", "parse"),
        ({"allow": ["github:*"], "when": "nonsense(args)"}, "when", "Undefined"),
        ({"allow": ["github:*"], "when": "1 > 2"}, "when", "can never match: it is false"),
        ({"allow": ["github:*"], "when": "'dev'"}, "when", "neither true nor false"),
        ({"allow": ["github:*"], "when": "1 / 0 == 2"}, "when", "division"),
        ({"alow": ["github:*"]}, "alow", 'did you mean "allow"'),
        ({"limits": {"gitub:*": "1/s"}}, "limits.gitub:*", 'no such server; did you mean "github"'),
        ({"limits": {"github": "1/s"}}, "limits.github", "must be SERVER:NAME"),
        ({"limits": {"files:x": "1/s"}}, "limits.files:x", "no rule allows any of it"),
        ({"limits": {"/mcp/gitub": "1/s"}}, "limits./mcp/gitub", 'no such endpoint; did you mean "/mcp/github"'),
        ({"limits": {"/mcp": []}}, "limits./mcp", "says nothing"),
        ({"limits": {"/mcp": "60 a minute"}}, "limits./mcp[0].most", "must be a number per unit, as 60/min"),
        ({"limits": {"/mcp": "60/month"}}, "limits./mcp[0].most", "units are s, min, h, day, week"),
        ({"limits": {"/mcp": ["5/day", "0/min"]}}, "limits./mcp[1].most", "to forbid something use `deny`"),
        ({"limits": {"/mcp": "10001/s"}}, "limits./mcp[0].most", "10,000 in a second at most"),
        ({"limits": {"/mcp": {"most": "1/s", "brst": 1}}}, "limits./mcp[0].brst", 'did you mean "burst"'),
        ({"limits": {"/mcp": {"most": "1/s", "burst": 0}}}, "limits./mcp[0].burst", "greater than or equal to 1"),
        ({"limits": {"/mcp": {"most": "1/s", "burst": 1000000}}}, "limits./mcp[0]", "`burst` is 100,000 at most"),
        ({"limits": {"/mcp": {"most": "9/day", "burst": 1}}}, "limits./mcp[0]", "a quota has no `burst`"),
        ({"limits": {"/mcp": {"most": "9/s", "per": "group"}}}, "limits./mcp[0]", "needs `who.groups`"),
        ({"limits": {"/mcp": {"most": "9/s", "each": "tool"}}}, "limits./mcp[0]", "only tools and prompts"),
        ({"limits": {"/mcp": {"most": "9/s", "each": "server"}}}, "limits./mcp[0]", "an endpoint has no"),
        ({"limits": {"/mcp": ["9/s", {"most": "3/s", "burst": 1}]}}, "limits./mcp", "for the same already, per s"),
        ({"limits": {"/mcp": "9/s"}, "when": "args.n < 3"}, "limits./mcp", "about the caller only"),
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
        ({"as": {"principal": "ann"}, "item": "github:*", "expect": "allow"}, "item"),
        ({"as": {"principal": "ann"}, "item": "resource:g*:file:///x", "expect": "allow"}, "item"),
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


# Limits ----------------------------------------------------------------------------------------------------------


def test_limits_are_read_as_they_are_written(settings: Callable[..., Settings]) -> None:
    rule = {
        "who": {"groups": ["dev"]},
        "limits": {
            "github:*": ["60/min", {"most": "1000/day", "per": "all"}],
            "github:create_*": {"most": "10/h", "burst": 3, "per": "group", "each": "tool"},
            "/mcp*": "100 / s",
        },
    }
    policy = settings(config({"allow": ["github:*"]}, rule)).table.policy
    assert policy is not None
    assert [(str(one), str(limit)) for one, limit in policy.rules[1].limits] == [
        ("github:*", "60/min for each principal"),
        ("github:*", "1000/day for all together"),
        ("github:create_*", "10/h, 3 at once for each group, each tool by itself"),
        ("/mcp*", "100/s for each principal"),
    ]
    dev = Rights(groups=frozenset({"dev"}))
    assert len(policy.ruleset("ann", dev).due("tool", "github", "create_x")) == 3
    assert policy.ruleset("bot", Rights()).due("tool", "github", "create_x") == ()


def test_the_same_limit_for_others_is_another_one_and_for_the_same_is_refused(
    settings: Callable[..., Settings], problems: Callable[..., list[Problem]]
) -> None:
    allow = {"allow": ["github:*"]}
    limit: dict[str, Any] = {"limits": {"github:*": "1/s"}}
    assert settings(config(allow, limit, {**limit, "who": {"groups": ["dev"]}})).table.policy is not None
    (problem,) = problems(config(allow, limit, {"limits": {"github:*": "5/s"}}))
    assert (problem.field, "policy[1] limits the same" in problem.message) == (
        "gateway.policy[2].limits.github:*",
        True,
    )


def test_names_and_cursors_do_not_depend_on_limits(settings: Callable[..., Settings]) -> None:
    allow = {"allow": ["github:*"]}
    tables = [settings(config(allow, {"limits": {"github:*": rate}})).table for rate in ("1/s", "2/s")]
    assert len({table.digest for table in tables}) == 1
    assert tables[0] != tables[1]  # and yet a reload puts them in force


def test_a_condition_says_for_which_calls_a_limit_is(settings: Callable[..., Settings]) -> None:
    rule = {"limits": {"github:*": "1/s"}, "when": "args.n > 3"}
    policy = settings(config({"allow": ["github:*"]}, rule)).table.policy
    assert policy is not None
    due = policy.ruleset("ann", Rights()).due
    assert [len(due("tool", "github", "x", Facts({"n": n}))) for n in (2, 5, "x")] == [0, 1, 1]


def test_check_says_that_limits_in_memory_are_each_process_s_own(write: Callable[[str], Any]) -> None:
    rules: tuple[dict[str, Any], ...] = ({"allow": ["github:*"]}, {"limits": {"github:*": "1/s"}})
    found = [p for p in advice(load(write(config(*rules)), {})) if "counted in memory" in p.message]
    assert [p.field for p in found] == ["gateway.policy[1].limits"]
    assert not [
        p for p in advice(load(write(config(*rules, store="redis://r")), {})) if "counted in memory" in p.message
    ]


# Conditions ------------------------------------------------------------------------------------------------------


def test_a_condition_asks_about_the_call_and_its_caller(settings: Callable[..., Settings]) -> None:
    when = "args.n < 3 && 'dev' in groups && server == 'github' && tool.startsWith('q') && principal == 'ann'"
    policy = settings(config({"allow": ["github:*"], "when": when})).table.policy
    dev = Rights(groups=frozenset({"dev"}))
    assert decide(policy, "ann", dev, "tool", "github", "query", Facts({"n": 1})).allowed
    assert decide(policy, "ann", dev, "tool", "github", "query", Facts({"n": 4})).constraint == when
    assert not decide(policy, "ann", Rights(), "tool", "github", "query", Facts({"n": 1})).allowed
    assert decide(policy, "ann", dev, "tool", "github", "query", Facts({"n": "x"})).failed


CLAIMS = """has(claims.department) && claims.department == 'it' && claims["https://x.test/level"] >= 3"""


def test_a_condition_asks_about_claims_that_it_names(settings: Callable[..., Settings]) -> None:
    read = settings(config({"allow": ["github:*"], "when": CLAIMS}, {"allow": ["files:*"]}))
    policy = read.table.policy
    assert policy is not None
    assert policy.claims == {"department", "https://x.test/level"}
    ann = Rights("https://idp.test", "ann", claims=(("department", '"it"'), ("https://x.test/level", "3")))
    for rights, outcome in (
        (ann, "allow"),
        (replace(ann, claims=(("department", '"hr"'), ("https://x.test/level", "3"))), "deny"),
        (replace(ann, claims=()), "deny"),
        (replace(ann, claims=(("sub", '"root"'), *ann.claims)), "allow"),
    ):
        decision = decide(policy, "ann", rights, "tool", "github", "query")
        assert (decision.outcome, decision.failed) == (outcome, False)
        assert policy.ruleset("ann", rights).sees("github") == (outcome == "allow")


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("'claims.no' == args.x && \"team\" in claims", {"team"}),
        ("args.claims.a == 1", set()),
        ("claims [ 'a.b' ] == 1 && claims.sub == 'x'", {"a.b", "sub"}),
    ],
)
def test_the_claims_of_a_condition_are_found_by_their_names(text: str, claims: set[str]) -> None:
    assert CelCondition(text).claims == claims


@pytest.mark.parametrize(
    "text", ["size(claims) > 1", "claims.exists(c, c == 'x') || claims == args", "claims[args.x] == 1"]
)
def test_a_condition_that_names_no_claim_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name the claims"):
        CelCondition(text)


def test_a_condition_may_name_the_elements_of_a_list() -> None:
    condition = CelCondition("args.paths.all(p, p.startsWith('/pub/'))")
    assert {variable.value for variable in condition.variables} == {"args"}
    assert condition.holds({"args": {"paths": ["/pub/a"]}})
    assert not condition.holds({"args": {"paths": ["/pub/a", "/etc"]}})


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("!has(args.path) || args.path == '/pub'", {"path"}),
        ("""args["a.b"] == 1 && 'c' in args && args.l.all(x, x . d == 'e')""", {"a.b", "c", "l", "d"}),
        ("args.path.startsWith('/') && size(args.l) < 3 && args.filter.size () > 1", {"path", "l", "filter"}),
    ],
)
def test_the_members_that_a_condition_asks_about_are_found(text: str, members: set[str]) -> None:
    assert CelCondition(text).members == members


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
