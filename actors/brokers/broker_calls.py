"""The calls of a broker: runs what the parking machine wants, and keeps what it takes to say it to the right ones."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from actors.brokers.broker_lines import Line, Lines
from actors.brokers.broker_messages import LinkParked, Resume
from actors.brokers.parks import Parked, Parks
from actors.fronts.profiles import to_base36
from actors.links.link_messages import Call, Cancel, GiveAnswer, LinkAsked, LinkOutcome, LinkUnfit, Warm
from actors.links.own_calls import OwnCalls, Then
from actors.ports import Grant, Principal
from actors.protocol import errors, translate
from actors.protocol import payload as json
from actors.protocol.bridge import parking_events as ev
from actors.protocol.bridge import refusals, request_state
from actors.protocol.bridge.parking import step
from actors.protocol.bridge.parking_state import Calls, Rules
from actors.protocol.bridge.questions import question
from actors.protocol.capabilities import ClientBits
from actors.protocol.link_calls import SET_LEVEL
from actors.protocol.messages import EMPTY
from actors.protocol.methods import METHODS
from actors.protocol.modern import meta
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN
from actors.runtime import AtCapacity, Context, Ref, SystemClosed
from actors.services import Services

GATHER = 0.005
"""Seconds for which further questions are waited for after the first."""
INFO_BYTES = 16 * 1024
"""Of what a client says of itself; whoever says more is not introduced."""
QUESTIONS_BYTES = 32 * 1024 * 1024
"""Of the params of all questions that have no answer; a further one is refused."""
GRACE = 5.0
"""Seconds within which a backend must answer a ping after a call was given up."""
WAIT = 30.0
"""Seconds after which a call that waits for a connection looks whether there is any hope."""

Owner = tuple[Ref, int]
"""A caller, and its number of the call."""


@dataclass(frozen=True, slots=True)
class Patron:
    """One client without sessions, as far as it can be told to be one."""

    principal: Principal
    bits: ClientBits
    affinity: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    """A clock of the machine."""

    event: Any


@dataclass(slots=True)
class Running:
    """A call that is not over. `owner`: whoever waits for it at present, `last`: whoever did last; `level` and
    `progress` are what that one wants. `since`: when it was parked first."""

    call: Call
    owner: Owner | None
    last: Owner
    level: str | None
    progress: bool
    eligible: bool
    line: int = 0
    since: float | None = None


class BrokerCalls:
    """Of one broker's life. `settled` is called when the last call is over, `closed` when the first connection is given
    up, `ended` with each outcome."""

    def __init__(
        self,
        backend: str,
        patron: Patron,
        rules: Rules,
        services: Services,
        lines: Lines,
        parks: Parks,
        ctx: Context,
        settled: Callable[[], None],
        closed: Callable[[str], None],
        ended: Callable[[Owner, bool], None],
    ) -> None:
        self.grant = Grant("", 0)
        """Of this life."""
        self.running: dict[int, Running] = {}
        self.own = OwnCalls(ctx, services.limits.request_deadline)
        self._parked = Parked(parks, patron.principal)
        self._state = Calls(rules)
        self._backend = backend
        self._patron = patron
        self._services = services
        self._lines = lines
        self._parks = parks
        self._ctx = ctx
        self._settled = settled
        self._closed = closed
        self._ended = ended
        self._owners: dict[Owner, int] = {}
        self._next = 0
        self._resume: Resume | None = None
        self._todo: list[ev.ParkingEvent] = []
        self._stepping = False

    @property
    def incarnation(self) -> str:
        """Names this life in what a client holds."""
        return f"{self.grant.owner}.{to_base36(self.grant.epoch)}"

    # Callers

    def begin(self, call: Call) -> None:
        """A call of a client."""
        self._next += 1
        owner = (call.caller, call.call)
        client = call.client
        if client is not None and 0 < len(client.info) <= INFO_BYTES and not self._lines.info:
            self._lines.info = Raw(bytes(client.info))
        row = METHODS.get(call.method)
        level, eligible = client.level if client is not None else None, row is not None and row.eligible
        self.running[self._next] = Running(call, owner, owner, level, call.progress, eligible)
        self._owners[owner] = self._next
        self.step(ev.Begun(self._next, owner, eligible))

    def resume(self, message: Resume) -> None:
        """A client has come with answers."""
        owner = (message.caller, message.call)
        refusal = meta.unknown_level(message.level)
        if message.incarnation != self.incarnation or not message.park.isdecimal():
            refusal = request_state.invalid()
        if refusal is not None:
            message.caller.reply(LinkOutcome(self._backend, message.call, False, refusal.raw))
            return
        self._resume = message
        self.step(ev.Resumed(int(message.park), owner, message.round, message.answers))
        self._resume = None

    def cancel(self, owner: Owner, reason: str) -> None:
        """Nobody waits for it any more. If it was just parked, nobody has heard of that."""
        call = self._owners.get(owner)
        if call is None:
            return
        parked = self.running[call].owner is None
        self.running[call].owner = None
        self.step(ev.Expired(call) if parked else ev.Cancelled(call, reason))

    def left(self, ref: Ref) -> None:
        """A caller is gone. What is parked is its client's, and stays."""
        for owner in [running.owner for running in self.running.values() if running.owner is not None]:
            if owner[0] is ref:
                self.cancel(owner, "the client has disconnected")

    def give_up(self) -> None:
        """The broker ends: whoever is asked, or waits for an answer, is told."""
        for call, running in list(self.running.items()):
            self.step(ev.Cancelled(call, "the connection is closed") if running.owner else ev.Expired(call))

    # Links

    def asked(self, message: LinkAsked, line: int) -> None:
        """A question: it is parked, or answered at once."""
        call = message.call if message.call is not None else self._raiser(message.method, line)
        running = self.running.get(call) if call is not None else None
        if call is None or running is None:
            message.link.reply(GiveAnswer(message.id, *refusals.unasked(message.method)))
            return
        found = question(running.call.method, self._patron.bits, message.method, message.params)
        if isinstance(found, Raw) and self._asking + len(found) > QUESTIONS_BYTES:
            found = (False, errors.internal("too much is being asked of this client", reason="too_many").raw)
        if isinstance(found, Raw):
            self.step(ev.Asked(call, message.id, message.method, found))
        else:
            message.link.reply(GiveAnswer(message.id, *found))

    @property
    def _asking(self) -> int:
        """Bytes of what has no answer yet."""
        return sum(len(q.params) for held in self._state.held.values() for q in held.open.values())

    def _raiser(self, method: str, line: int) -> int | None:
        """The call on a connection that a question without one belongs to, if there is but one that may have raised it.
        Official SDKs ask for roots on the stream that belongs to no call. The answer is the same whichever call wanted
        it, so the newest that runs is asked; nothing else is ever guessed."""
        able = [call for call, running in self.running.items() if running.line == line and running.eligible]
        if method == "roots/list" and len(able) > 1:
            able = [max((call for call in able if self.running[call].owner is not None), default=able[0])]
        return able[0] if len(able) == 1 else None

    def outcome(self, message: LinkOutcome) -> None:
        """Of a call, or of one of the broker's own."""
        if message.call > 0:
            self.step(ev.Ended(message.call, message.ok, message.payload))
        else:
            self.own.outcome(message.call, message.ok, message.payload)

    def request(self, link: Ref, method: str, params: Raw, then: Then, seconds: float | None = None) -> None:
        """A request of the broker's own."""
        me = self._ctx.ref
        self.own.make(
            lambda call: link.reply(Call(me, call, method, params)),
            lambda call, reason: link.reply(Cancel(me, call, reason)),
            then,
            seconds,
        )

    def unfit(self, message: LinkUnfit, line: int) -> dict[Ref, list[Call]]:
        """The backend speaks the other era: the calls go back to whoever made them."""
        back: dict[Ref, list[Call]] = {}
        for call in message.calls:
            running = self.running.get(call.call)
            if running is not None and running.owner is not None:
                back.setdefault(running.owner[0], []).append(running.call)
                self.step(ev.Unsent(call.call))
        self.step(ev.LineGone(line))
        return back

    def wanting(self, line: int) -> list[Running]:
        """The calls on a connection that want log messages."""
        return [r for r in self.running.values() if r.line == line and r.owner is not None and r.level is not None]

    # The machine

    def step(self, event: ev.ParkingEvent) -> None:
        """One event, and what follows from it."""
        self._todo.append(event)
        if self._stepping:
            return
        self._stepping = True
        while self._todo:
            self._state, effects = step(self._state, self._todo.pop(0))
            for effect in effects:
                EFFECTS[type(effect)](self, effect)
        self._stepping = False

    def due(self, event: ev.ParkingEvent) -> None:
        """A clock."""
        if isinstance(event, ev.GatherOver):
            event = ev.GatherOver(event.call, self._parked.room(self._ctx.now()))
        elif isinstance(event, ev.WaitOver):
            event = ev.WaitOver(event.call, self._parked.patient(self._ctx.now()))
        self.step(event)

    def _clock(self, key: str, call: int, seconds: float, event: ev.ParkingEvent) -> None:
        self._ctx.set_timer((key, call), seconds, Due(event))

    def _open(self, line: int, level: str | None) -> Line | None:
        try:
            return self._lines.open(line, self.grant, level)
        except (AtCapacity, SystemClosed):
            return None

    def _connect(self, effect: ev.Connect) -> None:
        line = self._open(effect.line, None)
        if line is not None:
            line.ref.reply(Warm())
        else:
            self._closed("no connection to the server can be made")

    def _dispatch(self, effect: ev.Dispatch) -> None:
        running = self.running[effect.call]
        running.line = effect.line
        line = self._open(effect.line, running.level)
        if line is None:
            text, backend = "no connection to the server can be made", self._state.rules.server
            error = errors.internal(text, reason="no_link", executed="no", backend=backend)
            self.step(ev.Ended(effect.call, False, error.raw))
            return
        if running.level is not None:
            self._adjust(effect.line)
        call = running.call
        params = translate.client_request(call.method, call.params, LATEST_HANDSHAKE, MODERN)
        line.ref.reply(Call(self._ctx.ref, effect.call, call.method, params, call.progress))

    def _adjust(self, number: int) -> None:
        """The log level of a connection, by the calls on it."""

        def tell(line: Line, level: str, before: str | None) -> None:
            def told(ok: bool, payload: Raw) -> None:
                if not ok and line.level == level:
                    line.level = before

            self.request(line.ref, SET_LEVEL, json.dumps({"level": level}), told)

        self._lines.adjust(number, (running.level for running in self.wanting(number)), tell)

    def _park(self, effect: ev.Park) -> None:
        running = self.running[effect.call]
        # What was sent is not sent again: its params need not be kept while a human thinks.
        running.call = replace(running.call, params=EMPTY)
        running.owner = None
        if running.since is None:
            running.since = self._ctx.now()
        expired = Due(ev.Expired(effect.call))
        self._parked.add(effect.call, running.since, lambda: self._ctx.ref.reply(expired))
        self._count()
        self._clock("park", effect.call, self._services.limits.park_ttl, ev.Expired(effect.call))
        caller, call = _owner(effect.owner)
        caller.reply(
            LinkParked(self._backend, call, self.incarnation, str(effect.call), effect.round, effect.questions)
        )

    def _count(self) -> None:
        self._services.telemetry.gauge("stagedoor_parked_calls", float(self._parks.total))

    def forget_parked(self) -> None:
        """This life is over: whatever it had parked is not there any more."""
        self._parked.clear()
        self._count()

    def _unpark(self, effect: ev.Unpark) -> None:
        """Whoever resumed it has it from here on: before the backend gets the answers."""
        self._ctx.cancel_timer(("park", effect.call))
        self._parked.remove(effect.call)
        self._count()
        held, message = self._state.held.get(effect.call), self._resume
        if message is not None and held is not None and held.owner == (message.caller, message.call):
            running = self.running[effect.call]
            self._owners.pop(running.last, None)
            running.owner = running.last = (message.caller, message.call)
            running.level = message.level
            running.progress = message.progress
            self._owners[running.last] = effect.call
            if message.level is not None:
                self._adjust(running.line)

    def _outcome(self, effect: ev.Outcome) -> None:
        caller, call = _owner(effect.owner)
        self._ended((caller, call), effect.ok)
        caller.reply(LinkOutcome(self._backend, call, effect.ok, effect.payload))

    def _answer(self, effect: ev.Answer) -> None:
        line = self._lines.get(effect.line)
        if line is None:
            return
        version = line.hello.version if line.hello is not None else LATEST_HANDSHAKE
        ok, payload = translate.answer(effect.method, effect.ok, effect.payload, version, MODERN)
        line.ref.reply(GiveAnswer(effect.id, ok, payload))

    def _cancel(self, effect: ev.Cancel) -> None:
        line = self._lines.get(effect.line)
        if line is not None:
            line.ref.reply(Cancel(self._ctx.ref, effect.call, effect.reason))

    def _start_grace(self, effect: ev.StartGrace) -> None:
        """Servers that do one thing after the other answer a ping when they are done with what was cancelled; one that
        answers no ping is stuck."""
        line = self._lines.get(effect.line)
        if line is None:
            self.step(ev.Settled(effect.call))
            return
        self._clock("grace", effect.call, GRACE, ev.GraceOver(effect.call))
        settled = ev.Settled(effect.call)
        # Whether that comes in time the clock decides, which is over before the deadline of this.
        self.request(line.ref, "ping", EMPTY, lambda ok, payload: self.step(settled), 2 * GRACE)

    def _discard(self, effect: ev.Discard) -> None:
        first = self._lines.first()
        dropped = self._lines.drop(effect.line)
        if dropped is not None and dropped is first:
            self._closed("the connection to the server was closed")

    def _forget(self, effect: ev.Forget) -> None:
        running = self.running.pop(effect.call, None)
        if running is not None:
            self._owners.pop(running.last, None)
        if not self.running:
            self._settled()

    def _tally(self, effect: ev.Tally) -> None:
        self._services.telemetry.count("stagedoor_messages_dropped_total", (effect.what,))


def _owner(owner: Hashable) -> Owner:
    """What the machine carries as an opaque name."""
    assert isinstance(owner, tuple)
    return owner


EFFECTS: dict[type, Callable[[BrokerCalls, Any], None]] = {
    ev.Connect: BrokerCalls._connect,
    ev.Dispatch: BrokerCalls._dispatch,
    ev.Park: BrokerCalls._park,
    ev.Unpark: BrokerCalls._unpark,
    ev.Outcome: BrokerCalls._outcome,
    ev.Answer: BrokerCalls._answer,
    ev.Cancel: BrokerCalls._cancel,
    ev.StartGather: lambda calls, effect: calls._clock("gather", effect.call, GATHER, ev.GatherOver(effect.call, True)),
    ev.StartWait: lambda calls, effect: calls._clock("wait", effect.call, WAIT, ev.WaitOver(effect.call)),
    ev.StopWait: lambda calls, effect: calls._ctx.cancel_timer(("wait", effect.call)),
    ev.StartGrace: BrokerCalls._start_grace,
    ev.StopGrace: lambda calls, effect: calls._ctx.cancel_timer(("grace", effect.call)),
    ev.Discard: BrokerCalls._discard,
    ev.Forget: BrokerCalls._forget,
    ev.Tally: BrokerCalls._tally,
}
