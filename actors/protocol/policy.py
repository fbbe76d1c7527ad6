"""Who may do what: rules over backends, tools, prompts and resources, and the one function that decides by them.

Lists and calls ask the same `decide`, so that what is listed can be called, and nothing else. Backend and name are
matched each by itself, and are the backend's own: an exposed name is never taken apart.

*Who* a rule is for is found out once for each principal and its rights (`Policy.ruleset`); what it comes to for a name
is remembered there. A deny beats every allow, and with rules what none allows is denied.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from actors.protocol import limiting, uris
from actors.protocol.globs import TEMPLATE_MAX, Glob, covers, glob, meets, shortened, template
from actors.protocol.limiting import Due, Limit
from actors.protocol.rights import STATIC, Rights, principal_id
from actors.protocol.spelling import Members
from actors.protocol.uris import normalized

Kind = Literal["tool", "prompt", "resource", "template"]
"""What is named. A template stands for what it can become: it may be seen as long as some of that may be read."""
Outcome = Literal["allow", "deny", "step-up"]

RULESETS_MAX: Final = 4096
"""Principals, by their rights, whose rules are remembered."""
TEMPLATES_MAX: Final = 2_000
"""Templates of one list that rules are asked about: each takes long, and all others wait meanwhile. Further ones are
not shown."""
DECISIONS_MAX: Final = 4096
"""Decisions remembered for those who have the same rules."""
NAME_MAX: Final = 512
"""Characters of a name of which anything is remembered: a client can make up any."""
APART_MAX: Final = 1024
"""Tools and prompts that have limits of their own for one caller, where each has; those that he names after so many
share one, since a server may not have them at all."""


class Variable(Enum):
    """What a condition can ask about, by the name it has there."""

    PRINCIPAL = "principal"
    GROUPS = "groups"
    SCOPES = "scopes"
    CLAIMS = "claims"
    CLIENT = "client"
    SERVER = "server"
    TOOL = "tool"
    ARGS = "args"
    ANNOTATIONS = "annotations"


OF_CALLER: Final = frozenset({Variable.PRINCIPAL, Variable.GROUPS, Variable.SCOPES, Variable.CLAIMS, Variable.CLIENT})
"""What is the same for all that somebody asks for."""


class Condition(Protocol):
    """A condition on a call, made ready when the configuration was read."""

    text: str
    """As it is written."""
    variables: frozenset[Variable]
    """What it asks about."""
    claims: frozenset[str]
    """Which claims of the token it asks about."""
    members: frozenset[str]
    """Names of members that it asks about, of arguments among them."""

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it is true. Raises ConditionError."""


class ConditionError(Exception):
    """A condition can't be found true or false: it asks for what is not there, or is no yes or no."""


class Item(NamedTuple):
    """What a rule names: `github:read_*`, `prompt:github:*`, `resource:files:file:///pub/*`; a limit also names
    endpoints by their paths: `/mcp/*`."""

    kind: Literal["tool", "prompt", "resource", "endpoint"]
    backend: Glob
    name: Glob

    def __str__(self) -> str:
        if self.kind == "endpoint":
            return self.name.text
        prefix = "" if self.kind == "tool" else f"{self.kind}:"
        return f"{prefix}{self.backend.text}:{self.name.text}"

    def matches(self, kind: Kind | Literal["endpoint"], backend: str, name: str) -> bool:
        """Whether it names this. (A template is not named, but met or covered.)"""
        return self.kind == kind and self.backend.matches(backend) and self.name.matches(name)

    def matches_any(self, kind: Kind | Literal["endpoint"], backend: str, names: tuple[str, ...]) -> bool:
        """Whether it names one of these."""
        return any(self.matches(kind, backend, name) for name in names)


def item(text: str) -> Item:
    """What is written so. Raises ValueError with a sentence."""
    kind, rest = split(text)
    backend, colon, name = rest.partition(":")
    if not colon or not backend or not name:
        raise ValueError("must be SERVER:NAME, prompt:SERVER:NAME or resource:SERVER:URI; * stands for any text")
    if kind == "resource":
        name = uris.small_scheme(name)
        return Item(kind, glob(backend), Glob(name, uris.pattern(name)))
    return Item(kind, glob(backend), glob(name))


def limited(text: str) -> Item:
    """What a limit is for. Raises ValueError with a sentence."""
    return Item("endpoint", glob("*"), glob(text)) if text.startswith("/") else item(text)


def split(text: str) -> tuple[Literal["tool", "prompt", "resource"], str]:
    """The kind that an item's first word names, and the rest. (`prompt:x` is the tool x of a server called so.)"""
    first, _, rest = text.partition(":")
    if ":" in rest:
        if first == "prompt":
            return "prompt", rest
        if first == "resource":
            return "resource", rest
    return "tool", text


class Who(Struct, frozen=True):
    """For whom a rule is: one of each list that is there. Without any, for everybody."""

    groups: frozenset[str] | None = None
    principals: frozenset[str] | None = None
    scopes: frozenset[str] | None = None
    clients: frozenset[str] | None = None

    def includes(self, principal: str, rights: Rights) -> bool:
        """Whether this principal, with these rights, is one of them."""
        return (
            (self.principals is None or principal in self.principals)
            and (self.groups is None or not self.groups.isdisjoint(rights.groups))
            and (self.scopes is None or not self.scopes.isdisjoint(rights.scopes))
            and (self.clients is None or rights.client in self.clients)
        )

    def may_include(self, principal: str, rights: Rights) -> bool:
        """Whether he would be one of them by a group that his token could not name."""
        return rights.partial and self.groups is not None and replace(self, groups=None).includes(principal, rights)

    def within(self, other: "Who") -> bool:
        """Whether whoever is one of these is one of the others too."""
        both = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return all(theirs is None or (own is not None and own <= theirs) for own, theirs in both)


EVERYBODY: Final = Who()


class Rule(Struct, frozen=True):
    """One rule; `place` is where it stands in the configuration, which is how people are told of it. `scopes` are what
    items need besides, once they are allowed, `limits` how often they may be used. With `when` it counts only for calls
    of which the condition is true."""

    place: str
    who: Who = EVERYBODY
    allow: tuple[Item, ...] = ()
    deny: tuple[Item, ...] = ()
    scopes: tuple[tuple[Item, frozenset[str]], ...] = ()
    when: Condition | None = None
    limits: tuple[tuple[Item, Limit], ...] = ()

    @property
    def digest(self) -> str:
        """What it says of what may be seen and done, as text."""
        *who, _ = self.whom
        scopes = [(str(item), sorted(needed)) for item, needed in self.scopes]
        return repr((who, [*map(str, self.allow)], [*map(str, self.deny)], scopes, self.when and self.when.text))

    def about(self, backends: Iterable[str] | None = None) -> str:
        """What it says to those whom it is for, as text; of these backends alone, if they are given. Empty: nothing."""

        def names(one: Item) -> bool:
            return backends is None or any(map(one.backend.matches, backends))

        said = ([*map(str, filter(names, items))] for items in (self.allow, self.deny))
        scopes = [(str(item), sorted(needed)) for item, needed in self.scopes if names(item)]
        parts = (*said, scopes)
        return repr((*parts, self.when and self.when.text)) if any(parts) else ""

    @property
    def items(self) -> tuple[Item, ...]:
        """All that it names."""
        return (*self.allow, *self.deny, *(item for item, _ in (*self.scopes, *self.limits)))

    @property
    def rules(self) -> bool:
        """Whether it says what may be seen and done, and not only how often."""
        return bool(self.allow or self.deny or self.scopes)

    @property
    def whom(self) -> tuple[object, ...]:
        """For whom and for which calls it is: the limits of two rules are not the same where this is not."""
        who = (getattr(self.who, name) for name in Who.__struct_fields__)
        return (*(None if names is None else sorted(names) for names in who), self.when and self.when.text)


# What is decided --------------------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """`rule` is that which decided, as people are told it. `scopes`: what a step-up has to ask for, all of it.
    `constraint`: the condition that this call does not meet, where other arguments would. `failed`: it could not be
    decided, and is denied."""

    outcome: Outcome
    rule: str
    scopes: tuple[str, ...] = ()
    constraint: str = ""
    failed: bool = False

    @property
    def allowed(self) -> bool:
        """Whether it may be done."""
        return self.outcome == "allow"

    @property
    def listed(self) -> bool:
        """Whether it may be seen: what lacks only a scope may, since its client could not ask for the scope else."""
        return self.outcome != "deny"


NO_RULES: Final = Decision("allow", "no policy")
UNMENTIONED: Final = Decision("deny", "no rule allows it")
UNREADABLE: Final = Decision("deny", "the URI could be read as another one")
TEMPLATE_TOO_LONG: Final = Decision(
    "deny", f"the template has more than {TEMPLATE_MAX} characters beside its expressions"
)
URI_TOO_LONG: Final = Decision("deny", f"the URI is longer than {uris.URI_MAX} characters")

Values: TypeAlias = Mapping[str, Any]


class Facts(NamedTuple):
    """What conditions may ask about besides names: arguments as they were given (None: of a list), and what is known of
    the tool."""

    args: Any = None
    annotations: Any = None


NOTHING: Final = Facts()
_Decided: TypeAlias = list[tuple[Item, Decision]]


class Narrowed:
    """What rules say of the things of single servers. All to whom the same rules apply have one."""

    __slots__ = ("__weakref__", "_many", "_one", "failed", "rules")

    def __init__(self, rules: tuple[Rule, ...], failed: frozenset[str]) -> None:
        """`failed`: places of rules that nobody can tell whether they are for those to whom they apply."""
        self.rules = rules
        self.failed = failed
        self._one: dict[tuple[str, str], tuple[Rule, ...]] = {}
        """By kind and backend, of as many as are configured."""
        self._many: dict[tuple[str, str], tuple[_Decided, _Decided]] = {}
        """The same."""

    def of_one(self, kind: Kind, backend: str) -> tuple[Rule, ...]:
        """The rules that say something of such things of a backend, with what they say of them."""
        known = self._one.get((kind, backend))
        if known is None:

            def here(one: Item) -> bool:
                return one.kind == kind and one.backend.matches(backend)

            narrowed = (
                replace(
                    rule,
                    allow=tuple(filter(here, rule.allow)),
                    deny=tuple(filter(here, rule.deny)),
                    scopes=tuple((one, scopes) for one, scopes in rule.scopes if here(one)),
                )
                for rule in self.rules
            )
            known = tuple(rule for rule in narrowed if rule.allow or rule.deny or rule.scopes)
            self._one[kind, backend] = known
        return known

    def of_many(self, kind: Literal["tool", "prompt", "resource"], backend: str) -> tuple[_Decided, _Decided]:
        """What denies, and what allows anything of a backend, and what comes of it."""
        known = self._many.get((kind, backend))
        if known is None:
            known = self._many[kind, backend] = self._of_many(kind, backend)
        return known

    def _of_many(self, kind: Literal["tool", "prompt", "resource"], backend: str) -> tuple[_Decided, _Decided]:
        """What denies, and what allows anything of a backend, and what comes of it."""
        denied = [
            (item, Decision("deny", f"{rule.place}: deny {item}"))
            for rule in self.rules
            for item in rule.deny
            if item.kind == kind and item.backend.matches(backend) and rule.when is None
        ]
        allowed = [
            (item, Decision("allow", f"{rule.place}: allow {item}"))
            for rule in self.rules
            for item in rule.allow
            if item.kind == kind and item.backend.matches(backend) and rule.place not in self.failed
        ]
        return denied, [(i, d) for i, d in allowed if not any(covers(other.name, i.name) for other, _ in denied)]


class Ruleset:
    """The rules that are for somebody, and what they come to. `key` is the same for all who see and may do the same.
    `conditional`: whether anything depends on more than names; `limited`: whether anything may be done so often only,
    `metered`: whether that is said of endpoints."""

    __slots__ = (
        "_apart",
        "_asking",
        "_caller",
        "_due",
        "_failed",
        "_known",
        "_limits",
        "_narrowed",
        "_owner",
        "_rules",
        "_scopes",
        "_seen",
        "conditional",
        "key",
        "limited",
        "metered",
    )

    def __init__(self, narrowed: Narrowed, scopes: frozenset[str], caller: Values, owner: str = "") -> None:
        """`scopes`: those of the caller that rules name. `owner`: his principal."""
        rules, failed = narrowed.rules, narrowed.failed
        self._owner = owner
        self._limits = tuple((rule, item, limit) for rule in rules for item, limit in rule.limits)
        self.limited = any(item.kind != "endpoint" for _, item, _ in self._limits)
        self.metered = any(item.kind == "endpoint" for _, item, _ in self._limits)
        self._due: dict[tuple[str, str, str], tuple[Due, ...]] = {}
        self._apart: set[tuple[str, str, str]] = set()
        self._rules = rules
        self._failed = failed
        self._scopes = scopes
        self._caller = caller
        asking = ((rule, rule.when) for rule in rules if rule.when is not None and not rule.when.variables <= OF_CALLER)
        self._asking = tuple((rule.items, when.members) for rule, when in asking)
        self.conditional = bool(self._asking)
        self._known: dict[tuple[Kind, str, str], Decision] = {}
        self._seen: dict[str, bool] = {}
        self._narrowed = narrowed
        self.key = self.about()

    def about(self, backends: Collection[str] | None = None) -> str:
        """Equal for all who see and may do the same of these backends; None: of all. Where a rule stands makes no
        difference, and neither does whom else it is for."""
        said = {(text, rule.place in self._failed) for rule in self._rules if (text := rule.about(backends))}
        caller = sorted((name, repr(value)) for name, value in self._caller.items()) if self.conditional else []
        return _digest((sorted(said), sorted(self._scopes), caller))

    @property
    def remembered(self) -> int:
        """How many decisions are remembered."""
        return len(self._known)

    def decide(self, kind: Kind, backend: str, name: str, asked: Facts = NOTHING) -> Decision:
        """Whether this may be done, or (without arguments) seen."""
        if kind == "template":
            name = shortened(name)
        if self.conditional or len(name) > NAME_MAX:
            return self._decide(kind, backend, name, asked)
        key = (kind, backend, name)
        known = self._known.get(key)
        if known is None:
            known = self._decide(kind, backend, name, asked)
            if len(self._known) >= DECISIONS_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    def asks(self, kind: Kind, backend: str, name: str) -> Members | None:
        """The names that conditions ask about which count for this; None: none does, whatever its arguments are."""
        named = kind in ("tool", "prompt")  # all else has no arguments
        found = [
            members
            for items, members in self._asking
            if not named or any(one.matches(kind, backend, name) for one in items)
        ]
        return Members(name for members in found for name in members) if found else None

    def sees(self, backend: str) -> bool:
        """Whether anything of a backend may be seen: if not, it is as if there were none."""
        known = self._seen.get(backend)
        if known is None:
            known = any(self._some(kind, backend) for kind in ("tool", "prompt", "resource"))
            self._seen[backend] = known  # of as many as are configured
        return known

    def _some(self, kind: Literal["tool", "prompt", "resource"], backend: str) -> bool:
        anything = glob("*")
        return self._template(kind, backend, anything).outcome != "deny"

    # How often

    def due(self, kind: Kind | Literal["endpoint"], backend: str, name: str, asked: Facts = NOTHING) -> tuple[Due, ...]:
        """What has to be taken for doing this, which is allowed."""
        if not self._limits:
            return ()
        if self.conditional or len(name) > NAME_MAX:
            return self._dues(kind, backend, name, asked)
        key = (kind, backend, name)
        known = self._due.get(key)
        if known is None:
            known = self._dues(kind, backend, name, asked)
            if len(self._due) >= DECISIONS_MAX:
                self._due.clear()
            self._due[key] = known
        return known

    @property
    def meters(self) -> list[str]:
        """The limits of endpoints, in words."""
        return [f"{rule.place}: {one}: {limit}" for rule, one, limit in self._limits if one.kind == "endpoint"]

    def _dues(self, kind: Kind | Literal["endpoint"], backend: str, name: str, asked: Facts) -> tuple[Due, ...]:
        read_as: tuple[str, ...] = (name,)
        if kind == "resource":
            read = normalized(name) or name
            read_as, name = uris.readings(name, read), read
        as_kind = "resource" if kind == "template" else kind
        found: dict[str, Due] = {}
        for rule, one, limit in self._limits:
            if not one.matches_any(as_kind, backend, read_as):
                continue
            if kind != "endpoint" and self._holds(rule, kind, backend, name, asked) not in _COUNTS:
                continue
            of = {"item": "", "server": backend}.get(limit.each)
            if of is None:
                own = read_as[-1]  # what a server makes of it: else each fragment had a limit of its own
                of = f"{as_kind}:{backend}:{own}" if self._told_apart(as_kind, backend, own) else f"{as_kind}:{backend}"
            for whose in self._sharing(rule, limit):
                due = limiting.due(rule.place, str(one), limit, (*rule.whom, whose), of)
                found[due.bucket.key] = due
        return tuple(found.values())

    def _told_apart(self, kind: str, backend: str, name: str) -> bool:
        """Whether a tool or a prompt has a limit of its own."""
        key = (kind, backend, name)
        if key not in self._apart:
            if len(name) > NAME_MAX or len(self._apart) >= APART_MAX:
                return False
            self._apart.add(key)
        return True

    def _sharing(self, rule: Rule, limit: Limit) -> Iterable[str]:
        """Whose buckets a call of this caller is taken from."""
        if limit.per == "group":
            groups = sorted((rule.who.groups or frozenset()) & {*self._caller["groups"]})
            return groups or (self._owner,)  # of whom it is not known that he is in one of them
        return (self._owner if limit.per == "principal" else "",)

    # One name

    def _decide(self, kind: Kind, backend: str, name: str, asked: Facts) -> Decision:
        if kind == "template":
            written = uris.template(name)
            names, here = template(written), uris.here(written)
            if names is None:
                return TEMPLATE_TOO_LONG
            return self._template("resource", backend, names, None if here == written else template(here))
        read_as: tuple[str, ...] = (name,)
        if kind == "resource":
            read = normalized(name)
            if read is None:
                return UNREADABLE if len(name) <= uris.URI_MAX else URI_TOO_LONG
            read_as, name = uris.readings(name, read), read
        refused, allowed = UNMENTIONED, ""
        needed: dict[str, None] = {}
        gate = ""
        for rule in self._narrowed.of_one(kind, backend):
            deny = next((item for item in rule.deny if any(map(item.name.matches, read_as))), None)
            gates = [scopes for item, scopes in rule.scopes if any(map(item.name.matches, read_as))]
            allow = next((item for item in rule.allow if item.name.matches(name)), None)
            if deny is None and not gates and (allow is None or allowed):
                continue
            holds = self._holds(rule, kind, backend, name, asked)
            if deny is not None and holds in _COUNTS:
                return _refused(rule, holds, f"deny {deny}")
            if gates and holds in _COUNTS:
                needed |= dict.fromkeys(scope for scopes in gates for scope in sorted(scopes))
                gate = gate or rule.place
            if allow is not None and not allowed:
                if holds in (Holds.YES, Holds.MAYBE):
                    allowed = f"{rule.place}: allow {allow}"
                elif refused is UNMENTIONED:
                    refused = _refused(rule, holds, "its condition is not met")
        if not allowed:
            return refused
        if not self._scopes.issuperset(needed):
            return Decision("step-up", f"{gate}: scopes", tuple(needed))
        return Decision("allow", allowed)

    def _holds(self, rule: Rule, kind: Kind, backend: str, name: str, asked: Facts) -> "Holds":
        """Whether a rule counts for this."""
        if rule.place in self._failed:
            return Holds.UNKNOWN
        condition = rule.when
        if condition is None or condition.variables <= OF_CALLER:
            return Holds.YES  # it was asked when this ruleset was made
        if asked.args is None and Variable.ARGS in condition.variables:
            return Holds.MAYBE
        known = asked.annotations if isinstance(asked.annotations, dict) else {}
        args = asked.args if isinstance(asked.args, dict) else {}
        call = {"server": backend, "tool": name if kind == "tool" else "", "args": args, "annotations": known}
        try:
            return Holds.YES if condition.holds({**self._caller, **call}) else Holds.NO
        except ConditionError:
            return Holds.UNKNOWN

    def conditions(self, kind: Kind, backend: str, name: str) -> list[str]:
        """The rules about this that depend on the arguments of a call, each with its condition."""
        if kind == "resource":
            name = normalized(name) or name
        found = []
        for rule in self._rules:
            said = [("deny", rule.deny), ("scopes for", [item for item, _ in rule.scopes]), ("allow", rule.allow)]
            for verb, items in said:
                item = next((item for item in items if item.matches(kind, backend, name)), None)
                if item is not None and self._holds(rule, kind, backend, name, Facts(None)) is Holds.MAYBE:
                    found.append(f"{rule.place}: {verb} {item} when {_constraint(rule)}")
        return found

    # Many names

    def _template(
        self, kind: Literal["tool", "prompt", "resource"], backend: str, names: Glob, here: Glob | None = None
    ) -> Decision:
        """Whether some of these may be seen: an allow meets them, and no deny takes all that it allows of them.
        `here`: as in `uris`."""
        denied, allowed = self._narrowed.of_many(kind, backend)
        for item, decision in denied:
            if covers(item.name, names) or (here is not None and covers(item.name, here)):
                return decision
        for item, decision in allowed:
            if meets(item.name, names):
                return decision
        return UNMENTIONED


class Holds(Enum):
    """Whether the condition of a rule holds."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"
    """With some arguments: the thing is listed."""
    UNKNOWN = "unknown"
    """It can't be evaluated: what could be denied is."""


_COUNTS: Final = (Holds.YES, Holds.UNKNOWN)
"""When a rule takes something away."""


def _refused(rule: Rule, holds: Holds, why: str) -> Decision:
    if holds is Holds.UNKNOWN:
        return Decision("deny", f"{rule.place}: its condition can't be evaluated", failed=True)
    return Decision("deny", f"{rule.place}: {why}", constraint=_constraint(rule))


def _constraint(rule: Rule) -> str:
    """What a caller can do something about."""
    return rule.when.text if rule.when is not None and Variable.ARGS in rule.when.variables else ""


class Policy:
    """All rules of a configuration. `enforced`: otherwise decisions are counted and recorded, and change nothing.
    `shown` is the same for policies that say the same of what may be seen and done, `digest` also of how often.
    `limited` and `metered`: as of a `Ruleset`, for anybody."""

    __slots__ = ("_latest", "_narrowed", "_rulesets", "digest", "enforced", "limited", "metered", "rules", "shown")

    def __init__(self, rules: Iterable[Rule], *, enforced: bool = True) -> None:
        self.rules = tuple(rules)
        self.enforced = enforced
        limits = [[(str(item), limit) for item, limit in rule.limits] for rule in self.rules]
        kinds = {item.kind for rule in self.rules for item, _ in rule.limits}
        self.limited, self.metered = bool(kinds - {"endpoint"}), "endpoint" in kinds
        self.shown = _digest((enforced, [rule.digest for rule in self.rules]))
        self.digest = _digest((self.shown, limits))
        self._rulesets: OrderedDict[tuple[str, str], Ruleset] = OrderedDict()
        self._narrowed: WeakValueDictionary[tuple[tuple[Rule, ...], frozenset[str]], Narrowed] = WeakValueDictionary()
        """As long as a ruleset has it."""
        self._latest: dict[tuple[str, Rights], Ruleset] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def claims(self) -> frozenset[str]:
        """The claims of tokens that its conditions ask about."""
        return frozenset().union(*(rule.when.claims for rule in self.rules if rule.when is not None))

    @property
    def remembered(self) -> int:
        """How many rulesets are remembered."""
        return len(self._rulesets)

    @property
    def narrowed(self) -> int:
        """For how many different selections of rules it is remembered what they say of single servers."""
        return len(self._narrowed)

    def ruleset(self, principal: str, rights: Rights) -> Ruleset:
        """What the rules are to this principal with these rights."""
        known = self._latest.get((principal, rights))
        if known is None:
            known = self._ruleset(principal, rights)
            if len(self._latest) >= RULESETS_MAX:
                self._latest.clear()
            self._latest[principal, rights] = known
        return known

    def _ruleset(self, principal: str, rights: Rights) -> Ruleset:
        """Tokens that differ in when they expire come to the same."""
        key = (principal, rights.digest)
        known = self._rulesets.get(key)
        if known is None:
            known = self._rulesets[key] = self._ruleset_for(principal, rights)
            if len(self._rulesets) > RULESETS_MAX:
                self._rulesets.popitem(last=False)
        return known

    def _ruleset_for(self, principal: str, rights: Rights) -> Ruleset:
        # With `bindClient` each client of a user is a principal, and whoever can register clients has many.
        owner = principal if rights.issuer in ("", STATIC) else principal_id(rights.issuer, rights.subject)
        principal = called(principal, rights)
        caller = {
            "principal": principal,
            "groups": sorted(rights.groups),
            "scopes": sorted(rights.scopes),
            "claims": {
                **{name: json.loads(value) for name, value in rights.claims},
                "iss": rights.issuer,
                "sub": rights.subject,
                "client_id": rights.client,
            },
            "client": rights.client,
        }
        rules: list[Rule] = []
        failed: set[str] = set()
        for rule in self.rules:
            included = rule.who.includes(principal, rights)
            if not included and rule.who.may_include(principal, rights):
                # What it takes from its groups counts, what it gives them does not: nobody gets rid of a deny by being
                # in more groups than a token can name.
                rule, included = replace(rule, allow=()), True  # noqa: PLW2901
            holds = False if not included else None if _asks_in_vain(rule, rights) else _of_caller(rule, caller)
            if holds is None:
                failed.add(rule.place)
            if holds is not False:
                rules.append(rule)
        mentioned = {scope for rule in rules for _, scopes in rule.scopes for scope in scopes}
        said = tuple(rules), frozenset(failed)
        narrowed = self._narrowed.get(said)
        if narrowed is None:
            narrowed = self._narrowed[said] = Narrowed(*said)
        return Ruleset(narrowed, frozenset(mentioned & set(rights.scopes)), caller, owner)


def _digest(said: object) -> str:
    return hashlib.sha256(repr(said).encode(errors="surrogatepass")).hexdigest()[:16]


def shows_otherwise(
    before: Policy | None, now: Policy | None, principal: str, rights: tuple[Rights, Rights], backends: Collection[str]
) -> bool:
    """Whether a principal may see or do other things of these backends than before, with these rights before and
    now."""

    def about(policy: Policy | None, rights: Rights) -> str:
        if policy is None or not policy.enforced:
            return ""
        return policy.ruleset(principal, rights).about(backends)

    return about(before, rights[0]) != about(now, rights[1])


def shown_otherwise(before: Policy | None, now: Policy | None) -> bool:
    """Whether somebody may see or do other things than before."""
    return (before and before.shown) != (now and now.shown)


def _asks_in_vain(rule: Rule, rights: Rights) -> bool:
    """Whether its condition is about what the token could not name, or what was too long to be kept."""
    if rule.when is None:
        return False
    return (rights.partial and Variable.GROUPS in rule.when.variables) or not rule.when.claims.isdisjoint(rights.cut)


def _of_caller(rule: Rule, caller: Values) -> bool | None:
    """Whether a rule counts for a caller, as far as its condition asks for nothing else; None: it can't be told."""
    if rule.when is None or not rule.when.variables <= OF_CALLER:
        return True
    try:
        return rule.when.holds(caller)
    except ConditionError:
        return None


def called(principal: str, rights: Rights) -> str:
    """What rules call somebody: a configured token by its name, a user of an issuer `ISSUER#SUBJECT` (an issuer has
    no fragment: RFC 8414, section 2). The same subject of another issuer is somebody else."""
    return principal if rights.issuer in ("", STATIC) else f"{rights.issuer}#{rights.subject}"


def decide(
    policy: Policy | None, principal: str, rights: Rights, kind: Kind, backend: str, name: str, asked: Facts = NOTHING
) -> Decision:
    """Whether this principal may do this with these rights. Without a policy everybody may do everything."""
    return NO_RULES if policy is None else policy.ruleset(principal, rights).decide(kind, backend, name, asked)
