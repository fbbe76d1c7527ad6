"""What the client of an endpoint may see and do: filters of servers, and the rules of the policy.

Lists and calls ask here, and both come to the same function (`actors.protocol.policy`). A call is looked at before any
server is started, connected or asked. What is hidden is as if there were none of it.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Raw

from actors.audit_lines import who_asks, who_asks_often
from actors.endpoints.host import Host
from actors.limiter import Verdict
from actors.machines.session import effects as fx
from actors.protocol import errors, subjects
from actors.protocol import payload as json
from actors.protocol.aggregate import annotations_of, item_name
from actors.protocol.filter import located
from actors.protocol.limiting import Due
from actors.protocol.messages import EMPTY
from actors.protocol.methods import UNSUBSCRIBE
from actors.protocol.policy import NOTHING, TEMPLATES_MAX, Decision, Facts, Kind, Policy, Ruleset, called
from actors.protocol.rights import Rights
from actors.protocol.subjects import Subject
from actors.protocol.table import BackendSpec, left_out
from actors.services import Services

T = TypeVar("T")

_NAMED: dict[str, Kind] = {subjects.CALL: "tool", "prompts/get": "prompt"}
LINK = b'"resource_link"'
"""What is in results with links to resources."""
PINS = "pins"
"""What a refusal of what was not accepted is told by, in place of a rule."""
_ALLOWED = {True: ("allow", "enforce"), False: ("allow", "observe")}
SHOWN = 200
"""Characters of a name in a log."""


class Unmet(Exception):  # noqa: N818 - what the caller can mend
    """A tool call whose arguments a rule does not allow; the text is for the model that made them."""


def filtered(spec: BackendSpec) -> bool:
    """Whether a server's own filters leave anything out."""
    return spec.enabled_tools is not None or bool(spec.disabled_tools)


def shown(spec: BackendSpec, name: str) -> bool:
    """Whether these filters let a tool through, by the backend's own name for it."""
    return left_out(spec, name) is None


class Passed(NamedTuple):
    """A request that the rules let through: its params as they may go to the server, and what limits want of it."""

    params: Raw
    due: tuple[Due, ...] = ()
    subject: Subject | None = None


class Annotated(Protocol):
    """Knows the annotations of tools, which conditions of rules ask about."""

    def annotations(self, backend: str, tool: str) -> Any:
        """Those of a tool, as they were listed last; None: nothing is known of it."""


class Guard:
    """Decides what one client of one endpoint may see and do."""

    __slots__ = ("_annotated", "_asking", "_host", "_latest", "_services")

    def __init__(self, host: Host, services: Services, annotated: Annotated) -> None:
        self._host = host
        self._services = services
        self._annotated = annotated
        self._asking: Rights | None = None
        self._latest: tuple[Policy, Rights, Ruleset] | None = None
        """What was found last: one request asks several times, and the next one mostly brings the same rights."""

    # What may be seen

    @property
    def ruleset(self) -> Ruleset | None:
        """The rules that count for the client as it is known now; None: nothing is kept from it."""
        policy = self._services.table.value.policy
        if policy is None or not policy.enforced:
            return None
        return self._ruleset_for(policy, self._asking or self._host.rights)

    @property
    def key(self) -> str:
        """Equal for clients that see the same."""
        ruleset = self.ruleset
        return "" if ruleset is None else ruleset.key

    def asking(self, rights: Rights | None, act: Callable[[], T]) -> T:
        """Does something of which the outcome is for a request with these rights; None: it is not known with which."""
        before, self._asking = self._asking, rights
        try:
            return act()
        finally:
            self._asking = before

    def sees(self, backend: str) -> bool:
        """Whether anything of a server may be seen."""
        ruleset = self.ruleset
        return ruleset is None or ruleset.sees(backend)

    def hides(self, spec: BackendSpec, kind: Kind) -> bool:
        """Whether there is anything to leave out of a server's list, or to be told of it."""
        return self.ruleset is not None or spec.pins is not None or (kind == "tool" and filtered(spec))

    def shows(self, backend: str, kind: Kind, name: str) -> bool:
        """Whether a thing of a server, by its own name, may be seen."""
        ruleset = self.ruleset
        if kind == "resource" and not self.accepts(backend, name):
            return False
        return ruleset is None or ruleset.decide(kind, backend, name).listed

    def shows_task(self, backend: str, tool: str) -> bool:
        """Whether a client may ask about what a tool does for it. Of a task that was made before there were rules it is
        not known which tool it is of: then whoever sees the server may."""
        return self.shows(backend, "tool", tool) if tool else self.sees(backend)

    def shows_update(self, backend: str, params: Raw) -> bool:
        """Whether a client may hear that this resource of a server has changed."""
        spec, ruleset = self._services.table.value.backends.get(backend), self.ruleset
        if ruleset is None and (spec is None or spec.pins is None):
            return True
        uri = located(params)
        if uri is None or not self.accepts(backend, uri):
            return False
        return ruleset is None or ruleset.decide("resource", backend, uri).allowed

    def accepts(self, backend: str, uri: str) -> bool:
        """Whether a resource of a server, or what it is made from, was accepted, where that is asked."""
        spec = self._services.table.value.backends.get(backend)
        pins = spec.pins if spec is not None else None
        return pins is None or not pins.blocks or pins.allows("resource", uri)

    def introduced(self, backend: str, instructions: str | None) -> str | None:
        """What a server says of how to use it, as far as a client may be told."""
        spec = self._services.table.value.backends.get(backend)
        if spec is None or spec.pins is None:
            return instructions
        from actors.endpoints import pinning  # only where there are pins

        return pinning.introduced(self._services, spec.pins, backend, instructions)

    def introducing(self, backend: str, instructions: str | None, result: Raw) -> Raw:
        """The result in which a server introduces itself, without instructions that the client may not be told."""
        if self.introduced(backend, instructions) == instructions:
            return result
        return json.replace_members(result, {"instructions": None})

    def visible(
        self, spec: BackendSpec, kind: Kind, items: Iterable[Raw], member: str = "name", *, whole: bool = False
    ) -> Iterable[Raw]:
        """The items of a list that may be seen; `whole`: they are all there are."""
        if spec.pins is not None:
            from actors.endpoints import pinning  # only where there are pins

            items = pinning.accepted(self._services, spec.pins, spec.name, kind, items, whole=whole)
        if kind == "tool" and filtered(spec):
            items = (item for item in items if shown(spec, item_name(item) or ""))
        ruleset = self.ruleset
        if ruleset is None:
            return items
        if kind == "tool" and ruleset.conditional:
            return (item for item in items if _listed(ruleset, spec.name, item))
        decide, backend = ruleset.decide, spec.name
        if kind == "template":
            items = islice(items, TEMPLATES_MAX)
        return (item for item in items if decide(kind, backend, item_name(item, member) or "").listed)

    # What may be done

    def check(self, effect: fx.Dispatch, spec: BackendSpec, params: Raw) -> Passed:
        """A request for a server, in its own words. Raises Refusal, Malformed and Unmet."""
        policy = self._services.table.value.policy
        subject = subjects.named(effect.method, params)
        if subject is None:
            return Passed(params)
        if subject.kind == "tool" and filtered(spec) and not shown(spec, subject.name):
            self._left_out(effect, spec, subject)
            raise errors.Refusal(self.unknown(effect, subject))
        return Passed(subject.params) if policy is None else self._judge(policy, effect, spec.name, subject)

    def _judge(self, policy: Policy, effect: fx.Dispatch, backend: str, subject: Subject) -> Passed:
        ruleset, params, asked = self._ruleset_for(policy, effect.rights), subject.params, NOTHING
        names = ruleset.asks(subject.kind, backend, subject.name) if ruleset.conditional else None
        if names is not None:
            try:
                args, params = subjects.arguments(params, names)
            except errors.Malformed as malformed:
                self._record(policy, effect, backend, subject, Decision("deny", malformed.error.message))
                if policy.enforced:
                    raise
                return Passed(params)
            asked = Facts(args, self._annotated.annotations(backend, subject.name) if subject.kind == "tool" else None)
        decision = ruleset.decide(subject.kind, backend, subject.name, asked)
        if decision.outcome == "allow":
            self._services.telemetry.count("stagedoor_policy_decisions_total", _ALLOWED[policy.enforced])
            if ruleset.limited and not effect.paid and effect.method != UNSUBSCRIBE:
                return Passed(params, ruleset.due(subject.kind, backend, subject.name, asked), subject)
            return Passed(params)
        self._record(policy, effect, backend, subject, decision)
        if not policy.enforced:
            return Passed(params)
        if decision.failed:
            raise errors.Refusal(errors.internal("the policy can't be evaluated", reason="policy", executed="no"))
        if decision.outcome == "step-up":
            raise errors.Refusal(errors.insufficient_scope(decision.scopes))
        if decision.constraint:
            text = f"The arguments are not allowed here: they have to meet `{decision.constraint}`."
            if effect.for_model:
                raise Unmet(text)
            raise errors.Refusal(errors.invalid_params(text))
        raise errors.Refusal(self.unknown(effect, subject))

    def unlisted(self, effect: fx.Dispatch, backend: str, name: str) -> None:
        """A request names what no list shows to this client: if that is since filters, rules or pins hide it,
        this is recorded."""
        table, kind = self._services.table.value, _NAMED.get(effect.method)
        spec, policy = table.backends.get(backend), table.policy
        if kind is None or spec is None:
            return
        subject = Subject(kind, name, effect.params)
        if kind == "tool" and not shown(spec, name):
            self._left_out(effect, spec, subject)
            return
        if policy is not None and policy.enforced:
            decision = self._ruleset_for(policy, effect.rights).decide(kind, backend, name)
            if not decision.allowed:
                self._record(policy, effect, backend, subject, decision)
                return
        if spec.pins is not None and spec.pins.blocks:
            self.unaccepted(effect, backend, subject)

    def _ruleset_for(self, policy: Policy, rights: Rights) -> Ruleset:
        latest = self._latest
        if latest is None or latest[0] is not policy or latest[1] is not rights:
            latest = self._latest = (policy, rights, policy.ruleset(self._host.principal.name, rights))
        return latest[2]

    @staticmethod
    def unknown(effect: fx.Dispatch, subject: Subject) -> errors.ProtocolError:
        """In the client's words."""
        asked = subjects.named(effect.method, effect.params)
        if asked is not None and asked.kind == "tool" and effect.method != subjects.CALL:
            return errors.method_not_found(effect.method)
        return subjects.unknown(effect.method, asked or subject)

    def _record(self, policy: Policy, effect: fx.Dispatch, backend: str, subject: Subject, decision: Decision) -> None:
        """What was not allowed."""
        outcome, mode = "failed" if decision.failed else decision.outcome, "enforce" if policy.enforced else "observe"
        services = self._services
        services.telemetry.count("stagedoor_policy_decisions_total", (outcome, mode))
        tell = services.log.error if decision.failed else services.log.info
        self._tell(tell, "policy_refused", mode, effect, backend, subject, outcome=outcome, rule=decision.rule)

    def _left_out(self, effect: fx.Dispatch, spec: BackendSpec, subject: Subject) -> None:
        """A server's own filters do not let a tool through."""
        rule = f"mcpServers.{spec.name}.{left_out(spec, subject.name)}"
        self._refused(effect, "policy_refused", spec.name, subject, rule)

    def unaccepted(self, effect: fx.Dispatch, backend: str, subject: Subject) -> None:
        """What is asked for is not defined as it was accepted. Of a name that there is not, nothing is told."""
        spec = self._services.table.value.backends.get(backend)
        if spec is not None and spec.pins is not None and spec.pins.misses(subject.kind, subject.name):
            return
        self._services.telemetry.count("stagedoor_pin_refusals_total", (backend,))
        from actors.protocol.lookalikes import shown as written_out  # only where there are pins

        subject = subject._replace(name=written_out(subject.name[:SHOWN]))
        self._refused(effect, "pin_refused", backend, subject, PINS)

    def _refused(self, effect: fx.Dispatch, event: str, backend: str, subject: Subject, rule: str) -> None:
        self._tell(self._services.log.info, event, "enforce", effect, backend, subject, outcome="deny", rule=rule)

    def limited(self, effect: fx.Dispatch, backend: str, subject: Subject, verdict: Verdict, *, enforced: bool) -> None:
        """Limits do not let a request through, or would not."""
        due = verdict.refused
        if due is not None:
            why = {"outcome": "limited", "rule": f"{due.rule}: {due.item}: {due.limit}"}
            mode = "enforce" if enforced else "observe"
            self._tell(self._services.log.info, "limit_reached", mode, effect, backend, subject, often=True, **why)

    def _tell(
        self,
        tell: Callable[..., Any],
        event: str,
        mode: str,
        effect: fx.Dispatch,
        backend: str,
        subject: Subject,
        *,
        often: bool = False,
        **why: str,
    ) -> None:
        """`often`: whoever does not mind being refused can cause it at will."""
        services, name = self._services, subject.name[:SHOWN]
        told, who = {**why, "server": backend}, called(self._host.principal.name, effect.rights)
        tell(event, mode=mode, kind=subject.kind, item=name, principal=who, **told)
        if services.audit.on:
            asking = who_asks_often if often else who_asks
            about = asking(self._host.principal, effect.rights, self._host.operation(effect.call))
            if often:
                services.audit.record_often("deny", mode=mode, item=f"{subject.kind}:{name}", **told, **about)
                return
            given = json.members(effect.params).get("arguments")
            if given is not None and effect.method == subjects.CALL:
                about["args"] = services.audit.arguments(bytes(given))
            services.audit.record("deny", mode=mode, item=f"{subject.kind}:{name}", **told, **about)

    # What results say of other things

    def without_hidden(self, backend: str, result: Raw) -> Raw:
        """A result, or a task with its result, without links to resources that may not be read."""
        ruleset = self.ruleset
        if ruleset is None or not json.mentions(result, LINK):
            return result
        try:
            present = json.members(result)
            if json.is_object(present.get("result", EMPTY)):
                present["result"] = self.without_hidden(backend, present["result"])
            if "content" in present:
                present["content"] = _linked(ruleset, backend, present["content"])
            if "messages" in present:
                messages = [json.members(message) for message in json.elements(present["messages"])]
                said = [
                    {**m, "content": _linked(ruleset, backend, m["content"])} if "content" in m else m for m in messages
                ]
                present["messages"] = json.dumps(said)
            return json.dumps(present)
        except errors.Malformed:
            return result


def _listed(ruleset: Ruleset, backend: str, tool: Raw) -> bool:
    name = item_name(tool) or ""
    return ruleset.decide("tool", backend, name, Facts(None, annotations_of([tool], name))).listed


def _linked(ruleset: Ruleset, backend: str, content: Raw) -> Raw:
    """Blocks without links to what is hidden; in place of the only one, a word of why it is not there."""
    alone = json.is_object(content)
    blocks = [content] if alone else json.elements(content)
    kept = [block for block in blocks if not _hidden(ruleset, backend, block)]
    if len(kept) == len(blocks):
        return content
    return json.dumps({"type": "text", "text": "(a link to a resource that is not available here)"} if alone else kept)


def _hidden(ruleset: Ruleset, backend: str, block: Raw) -> bool:
    present = json.members(block)
    if json.text_or_none(present.get("type")) != "resource_link":
        return False
    uri = json.text_or_none(present.get("uri"))
    return uri is not None and not ruleset.decide("resource", backend, uri).listed
