"""The rules of a configuration: read, and refused where they could never match anything."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from actors.ports import ANONYMOUS
from actors.protocol import spelling
from actors.protocol.errors import Malformed
from actors.protocol.globs import covers, glob, meets
from actors.protocol.limiting import BURST_MOST, QUOTAS, Limit, amount
from actors.protocol.policy import (
    OF_CALLER,
    Condition,
    Decision,
    Facts,
    Item,
    Kind,
    Policy,
    Rule,
    Ruleset,
    Who,
    item,
    limited,
)
from actors.protocol.rights import STATIC, Rights, principal_id
from actors.protocol.table import BackendSpec, Table, left_out
from actors.protocol.uris import normalized
from gateway.config.models import Gateway, LimitSection, PolicyRule
from gateway.config.problems import Path, Problem, nearest
from gateway.config.settings import Callers, PolicyTest
from gateway.config.values import SCOPE

POLICY: Path = ("gateway", "policy")
_WHO = ("groups", "principals", "scopes", "clients")


def policy_of(
    gateway: Gateway,
    servers: Mapping[str, BackendSpec | None],
    paths: Collection[str],
    callers: Callers,
    problems: list[Problem],
) -> Policy | None:
    """The policy, if there is any rule. `servers`: all by their names; None: what it is, is not known. `paths`: of all
    endpoints. What is wrong is added to `problems`."""
    if gateway.policy is None:
        return None
    read = [_rule(rule, (*POLICY, index), problems) for index, rule in enumerate(gateway.policy)]
    rules = [rule for rule, _ in read]
    for index, (rule, placed) in enumerate(read):
        problems += _never(rule, placed, rules, servers)
        problems += _at_endpoints(rule, index, paths)
        strangers = [*_nobody(gateway.policy[index], (*POLICY, index), callers)]
        problems += strangers or _no_one(rule.who, (*POLICY, index), callers)
    problems += _twice(rules)
    return Policy(rules, enforced=gateway.policy_mode == "enforce")


Placed: TypeAlias = list[tuple[Path, Item]]
"""Items, and where they stand."""


def _rule(given: PolicyRule, path: Path, problems: list[Problem]) -> tuple[Rule, Placed]:
    placed: Placed = []

    def read(key: str, texts: Iterable[str]) -> Iterator[tuple[Item, str]]:
        for index, text in enumerate(texts):
            place = (*path, key, text if key in ("scopes", "limits") else index)
            try:
                one = limited(text) if key == "limits" else item(text)
            except ValueError as error:
                problems.append(Problem(str(error), place))
            else:
                placed.append((place, one))
                yield one, text

    if not (given.allow or given.deny or given.scopes or given.limits):
        problems.append(Problem("the rule names nothing: it has none of `allow`, `deny`, `scopes` and `limits`", path))
    allow, deny = (tuple(one for one, _ in read(key, getattr(given, key))) for key in ("allow", "deny"))
    scopes = tuple((one, frozenset(given.scopes[text])) for one, text in read("scopes", given.scopes))
    for text, several in given.limits.items():
        if not several:
            problems.append(Problem("says nothing: an empty list limits nothing", (*path, "limits", text)))
    for text, needed in given.scopes.items():
        if not needed or not all(map(SCOPE.fullmatch, needed)):
            words = "must be a list of scopes: each has no spaces, quotes or backslashes (RFC 6749, section 3.3)"
            problems.append(Problem(words, (*path, "scopes", text)))
    who = {name: frozenset(listed) for name in _WHO if (listed := getattr(given.who, name)) is not None}
    when = _condition(given.when, path, problems)
    limits: list[tuple[Item, Limit]] = []
    for one, text in read("limits", given.limits):
        for index, said in enumerate(given.limits[text]):
            why = _senseless(said, one, given)
            if why:
                problems.append(Problem(why, (*path, "limits", text, index)))
            else:
                limits.append((one, Limit(*amount(said.most), said.burst or 0, said.per, said.each)))
    return Rule(f"policy[{path[-1]}]", Who(**who), allow, deny, scopes, when, tuple(limits)), placed


def _senseless(said: LimitSection, one: Item, rule: PolicyRule) -> str:
    """Why a limit can't be meant so."""
    _, unit = amount(said.most)
    if said.burst is not None and unit in QUOTAS:
        return "a quota has no `burst`: it is all there at the beginning of its day or week"
    if said.burst is not None and said.burst > BURST_MOST:
        return f"`burst` is {BURST_MOST:,} at most"
    if said.per == "group" and not rule.who.groups:
        return "needs `who.groups`, which say whose members share it"
    if said.each == "tool" and one.kind in ("resource", "endpoint"):
        return 'only tools and prompts have `"each": "tool"`'
    if said.each == "server" and one.kind == "endpoint":
        return 'an endpoint has no `"each": "server"`'
    return ""


def _twice(rules: list[Rule]) -> Iterator[Problem]:
    """Limits that stand there already: they would be counted once."""
    seen: dict[object, str] = {}
    for index, rule in enumerate(rules):
        for one, limit in rule.limits:
            key = (repr(rule.whom), str(one), limit.unit, limit.per, limit.each)
            if key in seen:
                words = f"{seen[key]} limits the same for the same already, per {limit.unit}"
                yield Problem(words, (*POLICY, index, "limits", str(one)))
            seen[key] = rule.place


def _at_endpoints(rule: Rule, index: int, paths: Collection[str]) -> Iterator[Problem]:
    """What is wrong with limits of endpoints."""
    of_call = rule.when is not None and not rule.when.variables <= OF_CALLER
    for one, _ in rule.limits:
        if one.kind != "endpoint":
            continue
        place: Path = (*POLICY, index, "limits", str(one))
        if not any(map(one.name.matches, paths)):
            near = nearest(one.name.text, paths) if one.name.literal else None
            yield Problem("can never match: there is no such endpoint", place, near)
        elif of_call:
            yield Problem("requests at an endpoint are not looked into: here `when` is about the caller only", place)


def _condition(text: str | None, path: Path, problems: list[Problem]) -> Condition | None:
    if text is None:
        return None
    from gateway.config.conditions import CelCondition

    try:
        return CelCondition(text)
    except ValueError as error:
        problems.append(Problem(str(error), (*path, "when")))
        return None


# What can never match ---------------------------------------------------------------------------------------------


def _never(
    rule: Rule, placed: Placed, rules: list[Rule], servers: Mapping[str, BackendSpec | None]
) -> Iterator[Problem]:
    beating = [r for r in rules if r is rule or (r.when is None and rule.who.within(r.who))]
    for place, one in placed:
        key = place[3]
        if one.kind == "endpoint":
            continue
        server = any(one.backend.matches(name) for name in servers)
        if not server:
            near = nearest(one.backend.text, servers) if one.backend.literal else None
            yield Problem("can never match: there is no such server", place, near)
        elif (why := _unreachable(one, servers)) is not None:
            yield Problem(f"can never match: {why}", place)
        elif key == "allow":
            denied = next((deny for other in beating for deny in other.deny if _inside(one, deny)), None)
            if denied is not None:
                yield Problem(f"can never match: `{denied}` is denied", place)
        elif key in ("scopes", "limits") and not any(_touch(one, allow) for other in rules for allow in other.allow):
            yield Problem("can never match: no rule allows any of it", place)


def _unreachable(one: Item, servers: Mapping[str, BackendSpec | None]) -> str | None:
    """Why no call to the servers that it names can ever be for this."""
    matched = [name for name in servers if one.backend.matches(name)]
    if not meets(one.name, glob("*")):
        return "a set of characters in it is empty"
    if one.kind == "resource" and normalized(one.name.text.replace("*", "x").replace("?", "x")) is None:
        return "URIs with `..`, encoded slashes or backslashes are denied anyway"
    if one.kind == "tool" and all(_filtered_out(one, servers[name]) for name in matched):
        return "`enabledTools` or `disabledTools` of the server leave it out"
    return None


def _filtered_out(one: Item, spec: BackendSpec | None) -> bool:
    if spec is None:
        return False
    if any(covers(glob(pattern), one.name) for pattern in spec.disabled_tools):
        return True
    return spec.enabled_tools is not None and not any(meets(glob(p), one.name) for p in spec.enabled_tools)


def _inside(one: Item, other: Item) -> bool:
    return one.kind == other.kind and covers(other.backend, one.backend) and covers(other.name, one.name)


def _touch(one: Item, other: Item) -> bool:
    return one.kind == other.kind and meets(one.backend, other.backend) and meets(one.name, other.name)


def _nobody(rule: PolicyRule, path: Path, callers: Callers) -> Iterator[Problem]:
    """Why a rule is for nobody who can come in."""
    who = rule.who
    for key in _WHO:
        names = getattr(who, key)
        if names is None:
            continue
        if not names:
            yield Problem("can never match: it is empty, so that the rule is for nobody", (*path, "who", key))
        for index, name in enumerate(names):
            known = _known(key, callers)
            if name in known or (callers.issuers and name and (key != "principals" or _user(name, callers.issuers))):
                continue
            yield Problem(f"can never match: {_MISSING[key]}", (*path, "who", key, index), nearest(name, known))


def _no_one(who: Who, path: Path, callers: Callers) -> Iterator[Problem]:
    """Why a rule is for nobody, though each of its lists is for somebody."""
    users = callers.issuers and (who.principals is None or any(_user(name, callers.issuers) for name in who.principals))
    known = {ANONYMOUS.name: Rights(), **callers.tokens}
    if not users and not any(who.includes(name, rights) for name, rights in known.items()):
        yield Problem("can never match: nobody has one of each of these", (*path, "who"))


_MISSING = {
    "groups": "no token has this group",
    "principals": "there is no such token (users of an issuer are `ISSUER#SUBJECT`)",
    "scopes": "no token has this scope",
    "clients": "no issuer is configured, whose tokens say for which client they are",
}


def _known(key: str, callers: Callers) -> set[str]:
    if key == "principals":
        return {ANONYMOUS.name, *callers.tokens}  # over stdio everybody is
    if key == "clients":
        return set()
    return {name for rights in callers.tokens.values() for name in getattr(rights, key)}


def _user(name: str, issuers: tuple[str, ...]) -> bool:
    return any(name.startswith(f"{issuer}#") and name != f"{issuer}#" for issuer in issuers)


# Questions of operators -------------------------------------------------------------------------------------------


def caller(
    name: str,
    groups: Iterable[str],
    scopes: Iterable[str],
    client: str,
    callers: Callers,
    claims: Mapping[str, Any] | None = None,
) -> tuple[str, Rights]:
    """Who somebody is by the name that rules have for him, with these groups and scopes besides those that are
    configured, and further claims of a token. Raises ValueError for a name that nobody can have."""
    member, may = frozenset(groups), frozenset(scopes)
    told = tuple(sorted((claim, json.dumps(value)) for claim, value in (claims or {}).items()))
    if name in callers.tokens:
        own = callers.tokens[name]
        return name, Rights(STATIC, name, client, own.groups | member, own.scopes | may)
    issuer = next((issuer for issuer in callers.issuers if name.startswith(f"{issuer}#")), None)
    if issuer is not None:
        subject = name[len(issuer) + 1 :]
        return principal_id(issuer, subject), Rights(issuer, subject, client, member, may, claims=told)
    if callers.tokens or callers.issuers:
        near = nearest(name, callers.tokens)
        hint = f'; did you mean "{near}"?' if near else ""
        if name != ANONYMOUS.name:
            raise ValueError(f"nobody has this name: users of an issuer are ISSUER#SUBJECT{hint}")
    return name, Rights("", "", client, member, may)


def cases(
    gateway: Gateway, servers: Collection[str], callers: Callers, problems: list[Problem]
) -> Iterator[PolicyTest]:
    """The tests that the configuration has. `servers`: all by their names."""
    for index, test in enumerate(gateway.policy_tests):
        path: Path = ("gateway", "policyTests", index)
        asks = test.as_
        try:
            who = caller(asks.principal, asks.groups, asks.scopes, asks.client or "", callers, asks.claims)
        except ValueError as error:
            problems.append(Problem(str(error), (*path, "as", "principal")))
            continue
        try:
            _, server, _ = _one(test.item)
        except ValueError as error:
            problems.append(Problem(str(error), (*path, "item")))
            continue
        if server not in servers:
            problems.append(Problem("there is no such server", (*path, "item"), nearest(server, servers)))
            continue
        yield PolicyTest(*who, test.item, test.args, test.expect)


def explained(table: Table, principal: str, rights: Rights, text: str, args: Any = None) -> Decision:
    """What comes of asking for this item, which names one thing: by filters of its server, rules and pins, as the
    gateway decides. Raises ValueError."""
    kind, backend, name = _one(text)
    spec = table.backends.get(backend)
    if spec is None:
        return Decision("deny", "there is no server of this name")
    if kind == "tool" and (filter := left_out(spec, name)) is not None:
        return Decision("deny", f"mcpServers.{backend}.{filter}")
    decision = _decided(table.policy, principal, rights, (kind, backend, name), args)
    if decision.outcome == "deny" or spec.pins is None or not spec.pins.blocks or spec.pins.allows(kind, name):
        return decision
    return Decision("deny", "pins: it was not accepted")


def _decided(
    policy: Policy | None, principal: str, rights: Rights, subject: tuple[Kind, str, str], args: Any
) -> Decision:
    if policy is None:
        return Decision("allow", "no policy")
    ruleset: Ruleset = policy.ruleset(principal, rights)
    names = ruleset.asks(*subject)
    try:
        if names is not None:
            spelling.check_within(args, names)
    except Malformed as malformed:
        return Decision("deny", malformed.error.message)
    return ruleset.decide(*subject, Facts(args))


def limits(policy: Policy | None, principal: str, rights: Rights, text: str, args: Any = None) -> list[str]:
    """How often this may be done, if it may be, and how often anything may be asked for at endpoints."""
    kind, backend, name = _one(text)
    ruleset = None if policy is None else policy.ruleset(principal, rights)
    if ruleset is None or not ruleset.decide(kind, backend, name, Facts(args)).listed:
        return []
    due = ruleset.due(kind, backend, name, Facts(args))
    own = [f"{one.rule}: {one.item}: {one.limit}" for one in due]
    return [*dict.fromkeys([*own, *ruleset.meters])]


def conditions(policy: Policy | None, principal: str, rights: Rights, text: str) -> list[str]:
    """The rules about this item that depend on the arguments of a call, each with its condition."""
    return [] if policy is None else policy.ruleset(principal, rights).conditions(*_one(text))


def _one(text: str) -> tuple[Kind, str, str]:
    one = item(text)
    assert one.kind != "endpoint"
    if not one.backend.literal or (one.kind != "resource" and not one.name.literal):
        raise ValueError("must name one thing: here are no patterns")
    return one.kind, one.backend.text, one.name.text
