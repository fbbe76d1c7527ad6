"""What clients are given of servers whose definitions had to be accepted (`actors.protocol.pins`).

Lists pass through `accepted`, for every endpoint and era: what is not as it was accepted is told to operators once, and
held back where the server's mode is `block`. A call of such a server waits until its definitions were looked at over
the connection that it is to go over: after each connect, when the server says that they have changed, and now and then.
What can't be looked at is not called. Loaded only where there are pins.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.endpoints.guard import SHOWN, Passed
from actors.machines.session import effects as fx
from actors.machines.upstream.events import ServerInfo
from actors.protocol import capabilities, errors, subjects
from actors.protocol.lookalikes import shown
from actors.protocol.methods import CHANGED, METHODS, UNSUBSCRIBE
from actors.protocol.pins import Difference, Pins, digest_of
from actors.protocol.policy import Kind
from actors.protocol.steady import Items
from actors.protocol.subjects import Subject
from actors.protocol.table import BackendSpec, Table
from actors.services import Services
from actors.upstreams.messages import UpstreamOutcome
from actors.upstreams.paging import Page, Paging

if TYPE_CHECKING:
    from actors.endpoints.endpoint import Endpoint

LOOK_AGAIN: Final = 300.0
"""Seconds after which a definition is looked at anew before it is called: servers may change without a word."""
LOOKS: Final = 4
"""Looks that a call waits for; a server that says again and again that its lists have changed is not called."""
LOOK_WITHIN: Final = 30.0
"""Seconds for a page of such a list."""
TOLD: Final = 200
"""Differences of one list that are told one by one."""
HINT: Final = "`stagedoor pin` shows it, `stagedoor pin --accept` takes it"
LISTED_IN: Final[dict[Kind, str]] = {kind: method for method, kind in subjects.LISTED.items()}
"""The list that has a definition."""


def accepted(
    services: Services, pins: Pins, backend: str, kind: Kind, items: Iterable[Raw], *, whole: bool
) -> Iterable[Raw]:
    """The items of a list that clients are given."""
    items = tuple(items)
    judged = pins.judge(kind, items, whole=whole)
    tell_all(services, pins, backend, judged.told)
    return judged.kept if pins.blocks else items


def introduced(services: Services, pins: Pins, backend: str, instructions: str | None) -> str | None:
    """What a server says of how to use it, if clients are given that."""
    difference = pins.introduced(instructions)
    if difference is None:
        return instructions
    tell(services, pins, backend, difference)
    return None if pins.blocks else instructions


def tell_all(services: Services, pins: Pins, backend: str, differences: Sequence[Difference]) -> None:
    """Of a list that has nothing to do with what was accepted, the first differences, and how many there are more."""
    for difference in differences[:TOLD]:
        tell(services, pins, backend, difference)
    more = Counter((one.kind, one.change) for one in differences[TOLD:] if pins.tells(one))
    for (kind, change), count in sorted(more.items()):
        told = {"server": backend, "kind": kind, "change": change, "held": pins.blocks and change != "removed"}
        services.telemetry.count("stagedoor_pin_changes_total", (backend, kind, change), count)
        services.log.warning("pin_changed", **told, count=count, hint=HINT)
        if services.audit.on:
            services.audit.record("pin.change", **told, count=count)


def tell(services: Services, pins: Pins, backend: str, difference: Difference) -> None:
    """Operators hear once of each difference."""
    if not pins.tells(difference):
        return
    held = pins.blocks and difference.change != "removed"
    name = shown(difference.name[:SHOWN])
    told = {"server": backend, "kind": difference.kind, "item": name, "change": difference.change, "held": held}
    services.telemetry.count("stagedoor_pin_changes_total", (backend, difference.kind, difference.change))
    say = services.log.info if difference.change == "removed" else services.log.warning
    unseen = {"unseen": list(difference.unseen)} if difference.unseen else {}
    say("pin_changed", **told, **unseen, hint=HINT)
    if services.audit.on:
        digests = {"before": difference.before, "after": difference.after}
        told |= {place: digest_of(form) for place, form in digests.items() if form}
        services.audit.record("pin.change", **told, **unseen)


class _Seen(Struct, frozen=True):
    """A list as it was when it was looked at: over which connection, when, and which names these pins hold back."""

    server_info: ServerInfo
    pins: Pins
    at: float
    held: frozenset[str]


@dataclass(slots=True)
class _Held:
    """A call that waits, as rules let it through; `table`: the configuration under which they did."""

    effect: fx.Dispatch
    backend: str
    passed: Passed
    table: Table
    looks: int = 1
    """How often it has waited for one."""


@dataclass(slots=True)
class _Look:
    """One that is under way, and who waits for it; `overtaken`: the server has said meanwhile that it is another
    list."""

    calls: list[int] = field(default_factory=list)
    overtaken: bool = False


class Pinning:
    """Sees to it that one client of one endpoint is given only definitions that were accepted."""

    __slots__ = ("_endpoint", "_going", "_held", "_looks", "_passed", "_seen")

    def __init__(self, endpoint: "Endpoint") -> None:
        self._endpoint = endpoint
        self._seen: dict[tuple[str, str], _Seen] = {}
        """By server and list."""
        self._held: dict[int, _Held] = {}
        self._looks: dict[tuple[str, str], _Look] = {}
        self._going: _Held | None = None
        """The call that goes on just now."""
        self._passed: dict[int, tuple[fx.Dispatch, Subject]] = {}
        """Calls that servers have, and what they name there, where that is called otherwise here."""

    @property
    def pending(self) -> int:
        """Calls of which something is remembered."""
        return len(self._held) + len(self._passed)

    def holds(self, call: int) -> bool:
        """Whether a call waits for a list."""
        return call in self._held

    def forget(self, call: int) -> None:
        """Nobody waits for this call any more."""
        self._held.pop(call, None)
        self._passed.pop(call, None)

    def worded(self, message: UpstreamOutcome) -> UpstreamOutcome:
        """The outcome of a call. What a pool refuses (`actors.pools.looking`) is refused in the client's words."""
        effect, subject = self._passed.pop(message.call, (None, None))
        if message.ok or effect is None or subject is None:
            return message
        if bytes(message.payload) != bytes(subjects.unknown(effect.method, subject).raw):
            return message
        return replace(message, payload=self._endpoint.guard.unknown(effect, subject).raw)

    def changed(self, backend: str, notification: str) -> None:
        """The server says that this list is another one."""
        for method, said in CHANGED.items():
            if said == notification:
                self._seen.pop((backend, method), None)
                if (backend, method) in self._looks:
                    self._looks[backend, method].overtaken = True

    def passes(self, effect: fx.Dispatch, spec: BackendSpec, passed: Passed) -> bool:
        """Whether a request may go to its server now; if not, it waits. Raises Refusal."""
        subject, pins = subjects.named(effect.method, passed.params), spec.pins
        if subject is None or pins is None or effect.method not in METHODS or effect.method == UNSUBSCRIBE:
            return True
        if self._endpoint.connecting.lacks(spec.name) or self._stands_for(spec.name):
            return True  # nothing runs there before its user has an account, and then it comes here again
        method = LISTED_IN[subject.kind]
        seen = self._seen.get((spec.name, method))
        known = pins.allows(subject.kind, subject.name)
        if known and (seen is None or not self._counts(spec.name, pins, seen)):
            self._hold(effect, spec.name, passed, method)
            return False
        if not known or seen is None or not pins.allows(subject.kind, subject.name, seen.held):
            self._endpoint.guard.unaccepted(effect, spec.name, subject)
            raise errors.Refusal(self._endpoint.guard.unknown(effect, subject))
        if self._endpoint.merged is not None:
            self._passed[effect.call] = effect, subject
        return True

    def _stands_for(self, backend: str) -> bool:
        merged = self._endpoint.merged
        return merged is not None and merged.listing.stands_for(backend)

    def _counts(self, backend: str, pins: Pins, seen: _Seen) -> bool:
        endpoint = self._endpoint
        same = endpoint.upstreams.server_infos.get(backend) is seen.server_info and seen.pins == pins
        return same and endpoint.host.ctx.now() - seen.at < LOOK_AGAIN

    # Looking

    def _hold(self, effect: fx.Dispatch, backend: str, passed: Passed, method: str) -> None:
        looks = self._going.looks + 1 if self._going is not None and self._going.effect is effect else 1
        self._held[effect.call] = _Held(effect, backend, passed, self._endpoint.services.table.value, looks)
        look = self._looks.get((backend, method))
        if look is None:
            self._looks[backend, method] = _Look([effect.call])
            self._look(backend, method)
        else:
            look.calls.append(effect.call)

    def _look(self, backend: str, method: str) -> None:
        def ready(server_info: ServerInfo | None, error: Raw) -> None:
            if server_info is None:
                self._failed(backend, method, error)
            elif capabilities.allows(capabilities.parse(server_info.capabilities), method):
                self._fetch(backend, method, server_info)
            else:
                self._looked(backend, method, server_info, ())

        self._endpoint.upstreams.when_ready(backend, ready)

    def _fetch(self, backend: str, method: str, server_info: ServerInfo) -> None:
        endpoint = self._endpoint

        def ask(params: Raw, page: Page) -> None:
            def came(outcome: object) -> None:
                page(outcome.ok, outcome.payload)  # type: ignore[attr-defined]

            if not endpoint.upstreams.own_call(backend, method, params, came, LOOK_WITHIN):
                page(False, errors.internal("no connection", reason="no_link", executed="no", backend=backend).raw)

        def done(items: Items | None, error: Raw) -> None:
            if items is None or error:
                self._failed(backend, method, error)
            else:
                self._looked(backend, method, server_info, items)

        Paging(METHODS[method].items or "", ask, done).start()

    def _looked(self, backend: str, method: str, server_info: ServerInfo, items: Items) -> None:
        endpoint, look = self._endpoint, self._looks.pop((backend, method))
        spec = endpoint.services.table.value.backends.get(backend)
        pins, kind = (spec.pins if spec is not None else None), subjects.LISTED[method]
        if pins is not None:
            judged = pins.judge(kind, items, whole=True)
            tell_all(endpoint.services, pins, backend, judged.told)
            self._seen[backend, method] = _Seen(server_info, pins, endpoint.host.ctx.now(), judged.held)
        if endpoint.merged is not None and endpoint.merged.listing.differs(method, backend, items):
            endpoint.outdated(backend, CHANGED[method])  # what is shown is to be what can be called
        if look.overtaken:
            self._seen.pop((backend, method), None)
        self._go_on(look.calls, self._again)

    def _failed(self, backend: str, method: str, error: Raw) -> None:
        """What can't be looked at is not called, and the reason is the connection's; but a server that wants an account
        first is called, and the call waits there."""
        look = self._looks.pop((backend, method))
        if self._endpoint.connecting.lacks(backend):
            self._go_on(look.calls, self._again)
            return
        up, end = backend in self._endpoint.upstreams.server_infos, self._endpoint.end
        said = unseen(backend).raw if up else error
        self._go_on(look.calls, lambda held: end(held.effect.call, False, said))

    def _go_on(self, calls: list[int], act: Callable[[_Held], None]) -> None:
        for call in calls:
            held = self._held.pop(call, None)
            if held is not None:
                self._endpoint.leave(call, lambda held=held: act(held))  # type: ignore[misc]

    def _again(self, held: _Held) -> None:
        """Rules are asked anew only where they may be others: what they count, they count once."""
        endpoint, effect = self._endpoint, held.effect
        if held.looks > LOOKS:
            endpoint.refuse(effect.call, unseen(held.backend))
            return
        table = endpoint.services.table.value
        spec = table.backends.get(held.backend)
        if table is not held.table or spec is None:
            endpoint.judge(effect, held.backend, held.passed.params, waited=True)
            return
        self._going = held
        try:
            passes = self.passes(effect, spec, held.passed)
        except errors.Refusal as refused:
            endpoint.refuse(effect.call, refused.error)
        else:
            if passes:
                endpoint.let_through(effect, held.backend, held.passed, waited=True)
        finally:
            self._going = None


def unseen(backend: str) -> errors.ProtocolError:
    """Why a call is not made."""
    text = f"what server {backend!r} defines can't be looked at"
    return errors.internal(text, reason="pins", executed="no", backend=backend)
