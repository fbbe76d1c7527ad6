"""Rules: whom they are for, what they let through, and what decides where several speak of one thing."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.protocol import policy as rules
from actors.protocol.globs import TEMPLATE_MAX, Glob, meets
from actors.protocol.limiting import Limit
from actors.protocol.policy import ConditionError, Facts, Policy, Rule, Variable, Who, decide, item
from actors.protocol.rights import STATIC, Rights
from actors.protocol.uris import URI_MAX

NOBODY = Rights()
DEV = Rights(groups=frozenset({"dev"}))


class Condition:
    """A condition in Python, as the engine of the configuration makes them of text."""

    def __init__(self, text: str, *variables: str) -> None:
        self.text = text
        self.variables = frozenset(map(Variable, variables))
        self.claims: frozenset[str] = frozenset()
        self.members: frozenset[str] = frozenset()

    def holds(self, values: Mapping[str, Any]) -> bool:
        try:
            return bool(eval(self.text, {}, dict(values)))
        except Exception as error:
            raise ConditionError(str(error)) from error


def rule(place: str = "policy[0]", **given: Any) -> Rule:
    who = Who(**{key: frozenset(value) for key, value in given.pop("who", {}).items()})
    scopes = tuple((item(name), frozenset(needed)) for name, needed in given.pop("scopes", {}).items())
    lists = {key: tuple(map(item, given.pop(key, ()))) for key in ("allow", "deny")}
    return Rule(place, who, scopes=scopes, **lists, **given)


def outcome(policy: Policy | None, rights: Rights, text: str, principal: str = "ann", args: Any = None) -> str:
    kind, rest = rules.split(text)
    backend, _, name = rest.partition(":")
    return decide(policy, principal, rights, kind, backend, name, Facts(args)).outcome


def test_without_a_policy_all_is_allowed():
    assert outcome(None, NOBODY, "github:delete_repo") == "allow"


def test_with_any_policy_what_no_rule_allows_is_denied():
    policy = Policy([rule(allow=["files:*"])])
    assert outcome(policy, NOBODY, "files:read") == "allow"
    assert outcome(policy, NOBODY, "github:read") == "deny"
    assert outcome(Policy([]), NOBODY, "files:read") == "deny"


def test_a_deny_beats_every_allow_wherever_it_stands():
    for order in (1, -1):
        policy = Policy([rule("a", allow=["*:*"]), rule("b", deny=["*:delete_*"])][::order])
        assert outcome(policy, NOBODY, "github:delete_repo") == "deny"
        assert decide(policy, "ann", NOBODY, "tool", "github", "delete_repo").rule == "b: deny *:delete_*"
        assert outcome(policy, NOBODY, "github:read") == "allow"


def test_tools_prompts_and_resources_are_named_apart():
    policy = Policy([rule(allow=["f:a", "prompt:f:b", "resource:f:file:///c*"])])
    asked = ("f:a", "prompt:f:a", "f:b", "prompt:f:b", "resource:f:file:///c/d", "resource:f:a")
    assert [t for t in asked if outcome(policy, NOBODY, t) == "allow"] == [asked[0], asked[3], asked[4]]


def test_a_server_and_its_names_are_matched_each_by_itself():
    policy = Policy([rule(allow=["a:b:c", "a__b:*"])])
    assert decide(policy, "ann", NOBODY, "tool", "a", "b:c").allowed
    assert not decide(policy, "ann", NOBODY, "tool", "a:b", "c").allowed
    assert not decide(policy, "ann", NOBODY, "tool", "a", "b__c").allowed


@pytest.mark.parametrize(
    ("who", "rights", "fits"),
    [
        ({}, NOBODY, True),
        ({"groups": ["dev", "ops"]}, DEV, True),
        ({"groups": ["ops"]}, DEV, False),
        ({"scopes": ["x"]}, Rights(scopes=frozenset({"x"})), True),
        ({"scopes": ["x"]}, NOBODY, False),
        ({"clients": ["app"]}, Rights(client="app"), True),
        ({"clients": ["app"]}, NOBODY, False),
        ({"principals": ["ann"]}, NOBODY, True),
        ({"principals": ["ann"]}, Rights(issuer=STATIC, subject="ann"), True),
        ({"principals": ["bob"]}, NOBODY, False),
        ({"principals": ["ann"]}, Rights(issuer="https://idp", subject="ann"), False),
        ({"principals": ["https://idp#ann"]}, Rights(issuer="https://idp", subject="ann"), True),
        ({"principals": ["https://idp#ann"]}, Rights(issuer="https://other", subject="ann"), False),
        ({"groups": ["dev"], "principals": ["bob"]}, DEV, False),
    ],
)
def test_a_rule_is_for_those_who_have_one_of_each_list(who: dict[str, list[str]], rights: Rights, fits: bool):
    assert (outcome(Policy([rule(who=who, allow=["*:*"])]), rights, "f:a") == "allow") is fits


def test_a_missing_scope_is_a_step_up_that_names_all_scopes_and_is_listed():
    policy = Policy([rule(allow=["g:*"], scopes={"g:create_*": ["repo:write", "a"], "g:*_repo": ["repo:admin"]})])
    decision = decide(policy, "ann", Rights(scopes=frozenset({"a"})), "tool", "g", "create_repo")
    assert decision.outcome == "step-up"
    assert decision.scopes == ("a", "repo:write", "repo:admin")
    assert decision.listed
    has = Rights(scopes=frozenset({"a", "repo:write", "repo:admin", "more"}))
    assert decide(policy, "ann", has, "tool", "g", "create_repo").allowed
    assert decide(policy, "ann", NOBODY, "tool", "g", "read").allowed


def test_a_scope_allows_nothing_by_itself():
    policy = Policy([rule(scopes={"g:x": ["s"]}, allow=["g:y"])])
    assert outcome(policy, Rights(scopes=frozenset({"s"})), "g:x") == "deny"


@pytest.mark.parametrize("uri", ["file:///pub/../secret", "file:///pub/%2e%2e/secret", "file:///pub%2fsecret"])
def test_a_uri_that_leads_elsewhere_is_denied_whatever_is_allowed(uri: str):
    assert outcome(Policy([rule(allow=["resource:*:*"])]), NOBODY, f"resource:f:{uri}") == "deny"


@pytest.mark.parametrize("uri", ["file:///secret/x", "FILE:///secret/x", "file:///./secret/x", "file:///%73ecret/x"])
def test_a_denied_uri_is_denied_in_every_spelling(uri: str):
    policy = Policy([rule(allow=["resource:f:*"], deny=["resource:f:FILE:///secret/*"])])
    assert outcome(policy, NOBODY, f"resource:f:{uri}") == "deny"


@pytest.mark.parametrize(
    ("template", "seen"),
    [("file:///{path}", True), ("file:///pub/{x}", True), ("file:///pub/secret/{x}", False), ("note://{x}", False)],
)
def test_a_template_is_seen_as_long_as_some_of_what_it_can_become_may_be_read(template: str, seen: bool):
    policy = Policy([rule(allow=["resource:f:file:///pub/*"], deny=["resource:f:file:///pub/secret/*"])])
    assert decide(policy, "ann", NOBODY, "template", "f", template).listed is seen


def test_a_server_of_which_nothing_may_be_seen_is_known():
    policy = Policy([rule(allow=["a:x", "prompt:b:*", "c:*"], deny=["c:*"])])
    ruleset = policy.ruleset("ann", NOBODY)
    assert [b for b in "abcd" if ruleset.sees(b)] == ["a", "b"]


# Conditions -----------------------------------------------------------------------------------------------------


def test_a_condition_on_arguments_is_a_constraint_at_the_call_and_hides_nothing():
    policy = Policy([rule(allow=["g:*"], when=Condition("args['n'] < 3", "args"))])
    assert decide(policy, "ann", NOBODY, "tool", "g", "x").listed
    assert decide(policy, "ann", NOBODY, "tool", "g", "x", Facts({"n": 1})).allowed
    refused = decide(policy, "ann", NOBODY, "tool", "g", "x", Facts({"n": 5}))
    assert (refused.outcome, refused.constraint, refused.failed) == ("deny", "args['n'] < 3", False)


def test_a_deny_with_a_condition_on_arguments_hides_nothing_either():
    policy = Policy([rule(allow=["g:*"]), rule("b", deny=["g:x"], when=Condition("args['n'] > 3", "args"))])
    assert decide(policy, "ann", NOBODY, "tool", "g", "x").listed
    assert decide(policy, "ann", NOBODY, "tool", "g", "x", Facts({"n": 1})).allowed
    assert decide(policy, "ann", NOBODY, "tool", "g", "x", Facts({"n": 5})).constraint == "args['n'] > 3"


def test_a_condition_that_fails_denies():
    policy = Policy([rule(allow=["g:*"], when=Condition("args['n'] < 3", "args"))])
    assert decide(policy, "ann", NOBODY, "tool", "g", "x", Facts({})).failed
    deny = Policy([rule(allow=["g:*"]), rule("b", deny=["g:*"], when=Condition("args['n'] < 3", "args"))])
    assert decide(deny, "ann", NOBODY, "tool", "g", "x", Facts({})).failed
    caller = Policy([rule(allow=["g:*"], when=Condition("groups[9] == ''", "groups"))])
    assert decide(caller, "ann", NOBODY, "tool", "g", "x").failed


def test_another_rule_may_allow_what_a_condition_does_not():
    policy = Policy([rule(allow=["g:*"], when=Condition("args['n'] < 3", "args")), rule("b", allow=["g:x"])])
    assert decide(policy, "ann", NOBODY, "tool", "g", "x", Facts({"n": 9})).allowed


def test_a_condition_on_the_caller_alone_decides_what_is_seen():
    policy = Policy([rule(allow=["g:*"], when=Condition("'dev' in groups", "groups"))])
    assert decide(policy, "ann", DEV, "tool", "g", "x").listed
    refused = decide(policy, "ann", NOBODY, "tool", "g", "x", Facts({}))
    assert (refused.listed, refused.constraint) == (False, "")


def test_a_condition_on_annotations_decides_what_is_seen():
    policy = Policy([rule(allow=["g:*"], when=Condition("annotations.get('readOnlyHint', False)", "annotations"))])
    assert decide(policy, "ann", NOBODY, "tool", "g", "x", Facts(None, {"readOnlyHint": True})).listed
    assert not decide(policy, "ann", NOBODY, "tool", "g", "x", Facts(None, {})).listed


# Against a plain reading -----------------------------------------------------------------------------------------

BACKENDS, NAMES, GROUPS, SCOPES = ("a", "b"), ("x", "xy", "y"), ("g", "h"), ("s", "t")
items = st.builds("{}:{}".format, st.sampled_from(["a", "b", "*"]), st.sampled_from(["x", "x*", "*y", "*", "?"]))
drawn = st.builds(
    dict,
    who=st.fixed_dictionaries({}, optional={"groups": st.sets(st.sampled_from(GROUPS), min_size=1)}),
    allow=st.lists(items, max_size=2),
    deny=st.lists(items, max_size=1),
    scopes=st.dictionaries(items, st.sets(st.sampled_from(SCOPES), min_size=1), max_size=1),
)


@given(st.lists(drawn, max_size=4), st.sets(st.sampled_from(GROUPS)), st.sets(st.sampled_from(SCOPES)))
def test_what_is_decided_is_what_a_plain_reading_says(
    several: list[dict[str, Any]], groups: set[str], scopes: set[str]
):
    policy = Policy([rule(f"policy[{i}]", **dict(one)) for i, one in enumerate(several)])
    rights = Rights(groups=frozenset(groups), scopes=frozenset(scopes))
    mine = [one for one in several if "groups" not in one["who"] or one["who"]["groups"] & groups]

    def names(pattern: str, backend: str, name: str) -> bool:
        server, _, rest = pattern.partition(":")
        return fnmatchcase(backend, server) and fnmatchcase(name, rest)

    for backend in BACKENDS:
        for name in NAMES:
            needed = {s for one in mine for p, wants in one["scopes"].items() if names(p, backend, name) for s in wants}
            denied = any(names(p, backend, name) for one in mine for p in one["deny"])
            allowed = any(names(p, backend, name) for one in mine for p in one["allow"])
            expected = "deny" if denied or not allowed else "allow" if needed <= scopes else "step-up"
            decision = decide(policy, "ann", rights, "tool", backend, name)
            assert decision.outcome == expected
            assert set(decision.scopes) == (needed if expected == "step-up" else set())
            assert not decision.listed or policy.ruleset("ann", rights).sees(backend)


@given(st.lists(drawn, max_size=3), st.sets(st.sampled_from(GROUPS)), st.sets(st.sampled_from(GROUPS)))
def test_who_has_one_standing_has_one_answer(several: list[dict[str, Any]], some: set[str], others: set[str]):
    policy = Policy([rule(f"policy[{i}]", **dict(one)) for i, one in enumerate(several)])
    one, other = (policy.ruleset("ann", Rights(groups=frozenset(groups))) for groups in (some, others))
    if one.key == other.key:
        decided = [[s.decide("tool", b, n) for b in BACKENDS for n in NAMES] for s in (one, other)]
        answers = [[(d.outcome, sorted(d.scopes), d.failed) for d in of] for of in decided]  # by whichever rule
        assert answers[0] == answers[1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rules, "RULESETS_MAX", 3)
    monkeypatch.setattr(rules, "DECISIONS_MAX", 3)
    policy = Policy([rule(allow=["*:*"])])
    for n in range(10):
        ruleset = policy.ruleset(f"p{n}", NOBODY)
        assert all(ruleset.decide("tool", "f", f"t{i}").allowed for i in range(10))
        assert ruleset.remembered <= 3
    assert policy.remembered <= 3


def test_what_rules_say_of_a_server_is_remembered_once_for_all_to_whom_the_same_apply(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rules, "RULESETS_MAX", 3)
    when = Condition("args['x'] == 1", "args")
    limit = Limit(3, "minute")
    everybody = rule(allow=["*:*"], limits=((item("f:*"), limit),), when=when)
    policy = Policy([everybody, rule("policy[1]", who={"groups": ["dev"]}, deny=["f:*"], scopes={"f:*": ["s"]})])
    for principal in "abc":
        for rights in (NOBODY, DEV):
            assert policy.ruleset(principal, rights).decide("tool", "f", "x").allowed == (rights is NOBODY)
    assert policy.narrowed == 2
    for principal in "def":
        policy.ruleset(principal, NOBODY)
    assert policy.narrowed == 1


@pytest.mark.parametrize("text", ["", "github", ":x", "github:", "prompt:a:", "resource::x", "resource:a:"])
def test_an_item_names_a_server_and_something_of_it(text: str):
    with pytest.raises(ValueError, match="SERVER"):
        item(text)


def test_an_item_of_a_server_called_prompt_is_a_tool():
    assert item("prompt:x").kind == "tool"
    assert str(item("resource:f:FILE:///a")) == "resource:f:file:///a"


AS_THEY_ARE_WRITTEN = [
    ("https://Example.com/priv/*", "https://Example.com/priv/a"),
    ("https://Example.com/priv/*", "HTTPS://example.COM/priv/a"),
    ("https://*.Corp.example/*", "https://a.corp.example/x"),
    ("file:///my%20docs/*", "file:///my%20docs/a"),
    ("file:///my docs/*", "file:///my%20docs/a"),
    ("file:///%70riv/*", "file:///priv/a"),
    ("file:///caf%C3%A9/*", "file:///café/a"),
    ("file:///%FF*", "file:///%FFa"),
    ("file:///a//b/*", "file:///a//b/c"),
    ("file:///a/./b", "file:///a/b"),
    ("file:///[a-c]x//y", "file:///bx/y"),
    ("http://[::1]/*", "http://[::1]/a"),
    ("http://[FE80::1]:8080/a%20b", "http://[fe80::1]:8080/a b"),
    ("file:///a%2A", "file:///a%2A"),
    ("file:///a%5Bb%5D?", "file:///a%5bb%5dz"),
    ("https://h.test/p?x=//1", "https://h.test/p?x=//1"),
    ("H*://x/*", "http://x/y"),
    ("*://x/*", "http://x/y"),
    ("*://[::1]/*", "http://[::1]/y"),
    ("http*://[FE80::1]:8080/a%20b//*", "https://[fe80::1]:8080/a b/y"),
    ("[hw]*://[::1]/*", "ws://[::1]/y"),
    ("*://x/my%20docs//*", "ftp://x/my docs/y"),
    ("*://Ann/*", "notes://Ann/y"),
    ("*://[ab]c/*", "notes://bc/y"),
    ("http://[0:0::0:1]/*", "http://[::1]/y"),
    ("http://[::1]/*", "http://[0:0:0:0:0:0:0:1]/y"),
    ("http://[::1]:80/*", "http://[0::0001]:80/y"),
    ("notes://[FE80::1]/*", "notes://[fe80::0:1]/y"),
    ("http://[1:2:3]/*", "http://[1:2:3]/y"),
    ("notes://Ann@*/*", "notes://Ann@[::1]/y"),
    ("notes://Ann*/*", "notes://Ann]/y"),
    ("https://example.com/*", "https://%45xample.com/y"),
    ("https://%45xample.com/*", "https://example.com/y"),
    ("http://[fe80::1]/*", "http://[%46E80::1]/y"),
    ("http?://[::1]/my%20docs//*", "https://[::1]/my docs/y"),
    ("*//x/*", "http://x//y"),
    ("*/my%20docs/*", "file:///my%20docs/a"),
    ("*/Private/*", "file:///home/Private/a"),
    ("*Ann:x", "file:///Ann:x"),
    ("N*:a/*", "notes:a/b"),
    ("README", "README"),
    ("*/a%2Ab", "file:///a%2Ab"),
    ("*", "http://x/y"),
]


@pytest.mark.parametrize(("written", "uri"), AS_THEY_ARE_WRITTEN)
def test_an_item_for_resources_matches_what_is_written_as_it_is(written: str, uri: str) -> None:
    denied = Policy([rule(allow=["resource:*:*"]), rule("policy[1]", deny=[f"resource:s:{written}"])])
    allowed = Policy([rule(allow=[f"resource:s:{written}"])])
    for policy, outcome in ((denied, "deny"), (allowed, "allow")):
        decision = policy.ruleset("ann", NOBODY).decide("resource", "s", uri)
        assert (decision.outcome, written.lower() in decision.rule.lower()) == (outcome, True)


def test_a_host_of_an_item_with_an_open_scheme_is_no_other_name() -> None:
    policy = Policy([rule(allow=["resource:s:*://Ann/*", "resource:s:*://[::1]/*"])])
    judged = [
        outcome(policy, NOBODY, f"resource:s:{uri}") for uri in ("x://ann/y", "x://:/y", "x://1/y", "x://[::2]/y")
    ]
    assert judged == ["deny"] * 4


@pytest.mark.parametrize("mark", ["%EE%80%80", "\ue000"])
def test_no_character_of_an_item_stands_for_any_text_but_a_star(mark: str) -> None:
    policy = Policy([rule(allow=[f"resource:s:file:///{mark}/pub/*", f"resource:s:*://h/{mark}/pub/*"])])
    judged = [outcome(policy, NOBODY, f"resource:s:{uri}") for uri in ("file:///secret/pub/x", "http://h/secret/pub/x")]
    assert judged == ["deny", "deny"]


def test_what_a_code_stands_for_is_no_pattern() -> None:
    policy = Policy([rule(allow=["resource:s:file:///a%2A", "resource:s:file:///%5Ba-z%5D"])])
    assert [outcome(policy, NOBODY, f"resource:s:{uri}") for uri in ("file:///a*", "file:///abc", "file:///b")] == [
        "allow",
        "deny",
        "deny",
    ]


@pytest.mark.parametrize("listed", ["https://Example.com/priv/{x}", "https://example.com/%70riv//{x}"])
def test_a_template_is_hidden_with_all_that_it_can_become(listed: str) -> None:
    policy = Policy([rule(allow=["resource:*:*"]), rule("policy[1]", deny=["resource:s:https://example.com/priv/*"])])
    judge = policy.ruleset("ann", NOBODY).decide
    assert (
        judge("template", "s", listed).outcome == judge("resource", "s", listed.replace("{x}", "a")).outcome == "deny"
    )
    assert judge("template", "s", "https://Example.com/{x}").outcome == "allow"


@pytest.mark.parametrize("host", ["h", "[::1]"])
def test_a_template_with_an_open_scheme_is_read_as_its_uris_are(host: str) -> None:
    policy = Policy([rule(allow=["resource:*:*"]), rule("policy[1]", deny=[f"resource:s:*://{host}/priv/*"])])
    judge = policy.ruleset("ann", NOBODY).decide
    assert judge("template", "s", f"{{scheme}}://{host}/%70riv//{{x}}").outcome == "deny"
    assert judge("template", "s", f"{{scheme}}://{host}/{{x}}").outcome == "allow"


def test_a_template_that_is_too_long_to_be_compared_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever completes, and each server, can make one up, and all others wait for as long as that takes."""
    compared: list[int] = []

    def counted(one: Glob, other: Glob) -> bool:
        compared.append(len(other.tokens))
        return meets(one, other)

    monkeypatch.setattr("actors.protocol.policy.meets", counted)
    ruleset = Policy([rule(allow=["resource:a:test:///pub/*"])]).ruleset("ann", Rights())
    for length, outcome in ((100, "allow"), (TEMPLATE_MAX, "allow"), (TEMPLATE_MAX + 1, "deny"), (1_000_000, "deny")):
        name = "test:///pub/{}".ljust(length, "a")
        assert ruleset.decide("template", "a", name).outcome == outcome
    assert max(compared) <= TEMPLATE_MAX


def test_what_stands_in_the_expressions_of_a_template_makes_it_no_longer() -> None:
    """Servers that are made of other descriptions name each parameter of a query there."""
    policy = Policy([rule(allow=["resource:a:*"]), rule("policy[1]", deny=["resource:a:https://h/priv/*"])])
    parameters = "{?" + ",".join(f"parameter{n}" for n in range(1_000)) + "}"
    ruleset = policy.ruleset("ann", NOBODY)
    for _ in range(2):
        assert ruleset.decide("template", "a", f"https://h/pub{parameters}").outcome == "allow"
        assert ruleset.decide("template", "a", f"https://h/priv/x{parameters}").outcome == "deny"
    assert ruleset.remembered == 2
    assert ruleset.decide("template", "a", "https://h/pub{?" + "p" * 1_000_000 + "}").outcome == "deny"


@pytest.mark.parametrize("part", ["a", "/x", "%61"])
def test_a_uri_that_is_too_long_to_be_read_is_denied(part: str) -> None:
    ruleset = Policy([rule(allow=["resource:a:*"])]).ruleset("ann", Rights())
    for length, outcome in ((URI_MAX, "allow"), (URI_MAX + len(part), "deny"), (4_000_000, "deny")):
        uri = f"test:///{part * (length // len(part))}"[: length // len(part) * len(part)]
        assert ruleset.decide("resource", "a", uri).outcome == outcome


def test_who_is_in_more_groups_than_a_token_can_name_gets_rid_of_no_deny() -> None:
    """Whoever can join groups can have the token leave them out (Entra ID does so above 200)."""
    policy = Policy(
        [
            rule("policy[0]", allow=["a:*"]),
            rule("policy[1]", who={"groups": ["contractors"]}, deny=["a:prod_*"]),
            rule("policy[2]", who={"groups": ["ops"]}, allow=["b:*"], deny=["a:old"]),
            rule("policy[3]", who={"groups": ["ops"], "principals": ["bob"]}, deny=["a:bobs"]),
            rule("policy[4]", deny=["a:cel"], when=Condition("'x' in groups", "groups")),
            rule("policy[5]", who={"groups": ["few"]}, scopes={"a:gated": ["s"]}),
        ]
    )
    asked = ("a:prod_x", "a:y", "b:z", "a:old", "a:bobs", "a:cel", "a:gated")
    for rights, expected in (
        (Rights(), ["allow", "allow", "deny", "allow", "allow", "allow", "allow"]),
        (Rights(partial=True), ["deny", "allow", "deny", "deny", "allow", "deny", "step-up"]),
        (
            Rights(groups=frozenset({"ops"}), partial=True),
            ["deny", "allow", "allow", "deny", "allow", "deny", "step-up"],
        ),
    ):
        assert [outcome(policy, rights, text) for text in asked] == expected
    assert Rights().digest != Rights(partial=True).digest


def test_nor_by_a_claim_that_is_too_long_to_be_kept() -> None:
    condition = Condition("'x' in claims.get('teams', [])", "claims")
    condition.claims = frozenset({"teams"})
    policy = Policy([rule(allow=["a:*"]), rule("policy[1]", deny=["a:b"], when=condition)])
    for rights, expected in (
        (Rights(), "allow"),
        (Rights(claims=(("teams", '["x"]'),)), "deny"),
        (Rights(cut=("teams",)), "deny"),
        (Rights(cut=("other",)), "allow"),
    ):
        assert outcome(policy, rights, "a:b") == expected


def test_nor_of_a_limit() -> None:
    limited = Rule("policy[1]", Who(groups=frozenset({"trial"})), limits=((item("a:*"), Limit(5, "min", 0, "group")),))
    policy = Policy([rule(allow=["a:*"]), limited])

    def buckets(principal: str, rights: Rights) -> set[str]:
        return {due.bucket.key for due in policy.ruleset(principal, rights).due("tool", "a", "x")}

    trial, partial = Rights(groups=frozenset({"trial"})), Rights(partial=True)
    assert buckets("ann", Rights()) == set()
    assert buckets("ann", trial) == buckets("bob", trial)
    assert len(buckets("ann", partial)) == 1
    assert buckets("ann", partial) != buckets("bob", partial)


@pytest.mark.parametrize(
    "written", ["file:///etc/*", "file:/etc/*", "FILE://localhost/etc/*", "file:/*/passwd", "file:/*"]
)
@pytest.mark.parametrize("uri", ["file:///etc/passwd", "file:/etc/passwd", "file://LOCALHOST//etc/passwd"])
def test_a_file_of_this_machine_has_one_name_for_rules(written: str, uri: str) -> None:
    policy = Policy([rule(allow=["resource:a:*"]), rule("policy[1]", deny=[f"resource:a:{written}"])])
    assert outcome(policy, NOBODY, f"resource:a:{uri}") == "deny"
    assert outcome(policy, NOBODY, "resource:a:note:/etc/passwd") == "allow"
    assert outcome(policy, NOBODY, "resource:a:file://server/pub/x") == ("deny" if written == "file:/*" else "allow")


@pytest.mark.parametrize("host", ["server", "127.0.0.1", "[::1]", "u@h:1", "localhost.", "%68", "Server"])
def test_what_rules_take_of_a_file_of_this_machine_is_taken_whatever_host_is_put_before_it(host: str) -> None:
    """Many servers look at the path alone; what rules allow is allowed as it is written."""
    uri = f"resource:a:file://{host}/etc/passwd"
    for written in ("file:///etc/*", "file:///etc/passwd", "*/etc/passwd"):
        policy = Policy([rule(allow=["resource:a:*"]), rule("policy[1]", deny=[f"resource:a:{written}"])])
        for end in ("", "#x", "?x"):
            assert outcome(policy, NOBODY, f"{uri}{end}") == "deny"
        assert outcome(policy, NOBODY, f"resource:a:file://{host}/pub/etc") == "allow"
        assert outcome(policy, NOBODY, f"resource:a:note://{host}/etc/x") == "allow"
    assert outcome(Policy([rule(allow=["resource:a:file:///etc/*"])]), NOBODY, uri) == "deny"
    judge = Policy([rule(allow=["resource:a:*"], deny=["resource:a:file:///etc/*"])]).ruleset("ann", NOBODY).decide
    for name in (host, "{host}", ""):  # none of what it can become may be read
        assert judge("template", "a", f"file://{name}/etc/{{x}}").outcome == "deny"
        assert judge("template", "a", f"file://{name}/{{x}}").outcome == "allow"
    other = Policy([rule(allow=["resource:a:*"]), rule("policy[1]", deny=["resource:a:file://elsewhere/etc/*"])])
    assert outcome(other, NOBODY, uri) == "allow"
    limit = Rule("policy[1]", limits=((item("resource:a:*"), Limit(5, "min", each="tool")),))
    ruleset = Policy([rule(allow=["resource:a:*"]), limit]).ruleset("ann", NOBODY)
    here = ruleset.due("resource", "a", "file:///etc/passwd")
    assert here == ruleset.due("resource", "a", uri.removeprefix("resource:a:"))


@pytest.mark.parametrize("written", ["file:///etc/passwd", "file:///etc/pass[w]d", "note://a/b"])
def test_what_rules_take_is_taken_whatever_stands_behind_its_path(written: str) -> None:
    """Many servers do not look at a fragment, and those of files at no query."""
    denying = Policy([rule(allow=["resource:a:*"]), rule("policy[1]", deny=[f"resource:a:{written}"])])
    gated = Policy([rule(allow=["resource:a:*"], scopes={f"resource:a:{written}": ["s"]})])
    plain = written.replace("[w]", "w")
    for uri in (plain, f"{plain}#", f"{plain}#x?y", f"{plain}?x" if plain.startswith("file") else f"{plain}#?"):
        assert outcome(denying, NOBODY, f"resource:a:{uri}") == "deny"
        assert outcome(gated, NOBODY, f"resource:a:{uri}") == "step-up"
    for uri in (f"{plain}s", f"{plain}%23", "note://a/b?q"):
        assert outcome(denying, NOBODY, f"resource:a:{uri}") == "allow"
    limit = Rule("policy[1]", limits=((item(f"resource:a:{written}"), Limit(5, "min")),))
    ruleset = Policy([rule(allow=["resource:a:*"]), limit]).ruleset("ann", NOBODY)
    assert ruleset.due("resource", "a", plain) == ruleset.due("resource", "a", f"{plain}#x")
    assert len(ruleset.due("resource", "a", f"{plain}#x")) == 1
    limit = Rule("policy[1]", limits=((item("resource:a:*"), Limit(5, "min", each="tool")),))
    ruleset = Policy([rule(allow=["resource:a:*"]), limit]).ruleset("ann", NOBODY)
    assert ruleset.due("resource", "a", plain) == ruleset.due("resource", "a", f"{plain}#x")
    assert ruleset.due("resource", "a", plain) != ruleset.due("resource", "a", f"{plain}s")
    allowing = Policy([rule(allow=[f"resource:a:{written}"])])
    assert outcome(allowing, NOBODY, f"resource:a:{plain}#x") == "deny"


@pytest.mark.parametrize(
    ("denied", "uri"),
    [
        ("https://h/priv/*", "https:/h/priv/x"),
        ("https://h/priv/*", "HTTPS:h/%70riv/x"),
        ("https://h/priv/*", "https:///h/priv/x"),
        ("wss://h/priv", "wss:////H/priv#x"),
        ("https://h/priv", " https://h/priv"),
        ("https://h/priv", "https://h/priv "),
        ("file:///etc/*", "file:etc/passwd"),
        ("file:///etc/*", " FILE:///etc/passwd"),
        ("file:///etc/passwd", "file:etc/passwd?x#y"),
        ("note://a/b", "\u00a0note://a/b "),
        ("note://a/b", "note://@a:/b"),
        ("https://h/", "https://h"),
        ("https://h/?x", "https://h?x"),
        ("https://h/priv", "https://h:443/priv"),
        ("https://h/priv", "https://h:/priv"),
        ("ws://h/priv", "ws://user:password@h:0080/priv"),
        ("https://h/priv", "https://h./priv"),
        ("https://h/priv", "https:ｈ\u200b.:443/priv"),
        ("https://[::1]/priv", "https://u@[0::1]:443/priv"),
    ],
)
def test_what_rules_take_is_taken_as_lenient_servers_read_a_uri(denied: str, uri: str) -> None:
    """`new URL(uri)` of JavaScript mends it; what rules allow is allowed as it is written."""
    policy = Policy([rule(allow=["resource:a:*"]), rule("policy[1]", deny=[f"resource:a:{denied}"])])
    assert outcome(policy, NOBODY, f"resource:a:{uri}") == "deny"
    assert outcome(Policy([rule(allow=[f"resource:a:{denied}"])]), NOBODY, f"resource:a:{uri}") == "deny"
    for other in ("https://h/x", "https:x", "file:x", "file:///x", "note:a/b", "etc/passwd", "https://h:80/priv/x"):
        assert outcome(policy, NOBODY, f"resource:a:{other}") == "allow"
