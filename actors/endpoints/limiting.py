"""Calls that wait until the store has said whether their limits let them through.

Who waits is known by the number of the call, so that whoever does not wait any more is not called. What was taken for
it stays taken: a call counts when it is let through, whatever becomes of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.endpoints.guard import Guard, Passed
from actors.endpoints.host import Host
from actors.limiter import Verdict
from actors.machines.modern.request_state import SKEW
from actors.machines.session import effects as fx
from actors.protocol import errors, limiting, subjects
from actors.protocol.errors import ProtocolError
from actors.runtime import EMPTY_TABLE, Context, put
from actors.services import Services


class Weighed(Struct, frozen=True):
    """What limits say of a call."""

    call: int
    verdict: Verdict


@dataclass(slots=True)
class Waiting:
    """A call that the rules have let through. `waited` as in `Endpoint.send`."""

    effect: fx.Dispatch
    backend: str
    passed: Passed
    waited: bool


class Sender(Protocol):
    """What `Limiting` asks of the endpoint whose calls it holds."""

    def send(self, effect: fx.Dispatch, backend: str, params: Raw, *, waited: bool = False) -> None:
        """Passes a request on to its server."""

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """Acts as soon as no record says of this call that it was not sent."""

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        """Gives a call its outcome."""

    def refuse(self, call: int, error: ProtocolError) -> None:
        """Gives a call an error of the gateway's own."""


class Limiting:
    """Holds the calls of one client until the store has said that their limits let them through."""

    __slots__ = ("_guard", "_host", "_sender", "_services", "waiting")

    def __init__(self, sender: Sender, guard: Guard, services: Services, host: Host) -> None:
        self._sender = sender
        self._guard = guard
        self._services = services
        self._host = host
        self.waiting: dict[int, Waiting] = EMPTY_TABLE

    def weigh(self, effect: fx.Dispatch, backend: str, passed: Passed, *, waited: bool) -> None:
        """Sends a call on its way if its limits let it through, now or later. Where they are only observed, nothing
        waits for them."""
        services, limits = self._services, self._services.limits
        policy = services.table.value.policy
        limiter, kept = services.limiter, limits.park_ttl + SKEW
        if policy is None or not policy.enforced:
            observed = partial(self._observed, effect, backend, passed)
            verdict = limiter.ask(passed.due, observed, of="call", enforced=False, once=effect.once, seconds=kept)
            if verdict is not None:
                observed(verdict)
            self._sender.send(replace(effect, paid=True), backend, passed.params, waited=waited)
            return
        came = partial(self._came, self._host.ctx, effect.call)
        verdict = limiter.ask(passed.due, came, of="call", enforced=True, once=effect.once, seconds=kept)
        if verdict is None:
            self.waiting = put(self.waiting, effect.call, Waiting(effect, backend, passed, waited))
        elif verdict.refused is None:
            self._sender.send(replace(effect, paid=True), backend, passed.params, waited=waited)
        else:
            self._decided(Waiting(effect, backend, passed, waited), verdict)

    @staticmethod
    def _came(ctx: Context, call: int, verdict: Verdict) -> None:
        ctx.ref.reply(Weighed(call, verdict))

    def _observed(self, effect: fx.Dispatch, backend: str, passed: Passed, verdict: Verdict) -> None:
        if passed.subject is not None:
            self._guard.limited(effect, backend, passed.subject, verdict, enforced=False)

    def weighed(self, message: Weighed) -> None:
        """The store has answered."""
        found = self.waiting.pop(message.call, None)
        if found is not None:
            self._decided(found, message.verdict)

    def _decided(self, found: Waiting, verdict: Verdict) -> None:
        effect, backend, passed = found.effect, found.backend, found.passed
        if verdict.refused is not None and passed.subject is not None:
            self._guard.limited(effect, backend, passed.subject, verdict, enforced=True)
            self._refuse(effect, passed.subject, verdict)
            return
        paid = replace(effect, paid=True)
        self._sender.leave(effect.call, lambda: self._sender.send(paid, backend, passed.params, waited=True))

    def _refuse(self, effect: fx.Dispatch, subject: subjects.Subject, verdict: Verdict) -> None:
        due = verdict.refused
        assert due is not None
        kind = "resource" if subject.kind == "template" else subject.kind
        if effect.for_model:
            self._sender.end(effect.call, True, errors.as_result(limiting.in_words(due, verdict.seconds, kind)))
        else:
            self._sender.refuse(effect.call, limiting.refusal(due, verdict.seconds, kind))

    def forget(self, call: int) -> None:
        """Nobody waits for this call any more."""
        self.waiting.pop(call, None)
