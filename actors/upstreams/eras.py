"""Era detection: which era each backend speaks, how a connection finds that out, and how often one may be mistaken.

A client of either era is served in its own if the backend speaks it. Whoever connects finds out: in the handshake era
by `initialize`, in the other by `server/discover`. A verdict holds for the target that is configured (2026-07-28
versioning), until something contradicts it; it is one value for the whole tree. So is what has shown which transport
a server has, and whether it asks in the course of calls.
"""

from dataclasses import dataclass, field, replace

from actors.machines.upstream import era as rules
from actors.machines.upstream.era import Case, Verdict
from actors.machines.upstream.legacy import refuses
from actors.machines.upstream.legacy_state import Upstream
from actors.protocol.diagnostics import Diagnostics, refusal_of, without_addresses
from actors.protocol.messages import Error, RequestId
from actors.protocol.table import BackendSpec, HttpTarget, SseTarget, Target
from actors.upstreams.messages import Failure

NO_COMMON_VERSION = "no_common_version"
"""The reason of a failure: server and gateway have no protocol revision in common."""
ERA_ATTEMPTS = 3
"""Times in a row that a backend may be of the other era than it was taken for: one of each, and another one for a
server that was slow."""
STARTS = 3.0
"""Times the seconds that a process took to answer `initialize`, in which it would have answered a probe too."""
SURE = (Case.MODERN_CODE, Case.OTHER_VERSION)
"""What only servers of the other era say."""


@dataclass(slots=True)
class _Known:
    target: Target
    modern: bool | None = None
    legacy: bool | None = None
    silent: bool = False
    """Not `modern` by its silence alone."""
    refusals: dict[str, str] = field(default_factory=dict)
    """By era: why it does not speak it, as it said."""
    sse: bool = False
    """It is reached by a URL, and has HTTP+SSE there, which has no other era than that of sessions."""
    handshake: float | None = None
    """Seconds from the start of a connection until the handshake was over: how long this server takes to start."""
    asks: bool = False
    """It has asked something of a client, and nothing but the calls that ran said for which."""

    @property
    def neither(self) -> bool:
        """It was slow, or out of order: whoever comes next begins anew."""
        return self.modern is False and self.legacy is False


class Eras:
    """By backend; None is not known, or not to be relied on."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def modern(self, spec: BackendSpec) -> bool | None:
        """Whether it speaks the modern era."""
        known = self._of(spec)
        return False if known.sse else None if known.neither else known.modern

    def legacy(self, spec: BackendSpec) -> bool | None:
        """Whether it speaks the handshake era."""
        known = self._of(spec)
        return None if known.neither else known.legacy

    def found_modern(self, spec: BackendSpec, speaks: bool | None, *, sure: bool = True, said: str = "") -> None:
        """What `server/discover` has shown; None: what was known of it is in doubt. Not `sure` is what follows from a
        silence: it holds until the other era is refused. `said`: what it answered, if it refused."""
        known = self._of(spec)
        known.refusals["modern"] = said
        known.modern, known.silent = speaks, speaks is False and not sure

    def mute(self, spec: BackendSpec, seconds: float) -> bool:
        """Whether a process that has said nothing for so long would have answered a probe. Of one that has answered
        `initialize` it is known how long it takes to start; of any other only the connect deadline tells."""
        took = self._of(spec).handshake
        return took is not None and seconds >= STARTS * took

    def found_legacy(self, spec: BackendSpec, took: float | None = None) -> None:
        """`initialize` was answered, so many seconds after the connection was begun."""
        known = self._of(spec)
        known.legacy = True
        if took is not None:
            known.handshake = max(took, known.handshake or 0.0)

    def refused(
        self, spec: BackendSpec, upstream: Upstream, error: Error, related: RequestId | None, status: int | None
    ) -> bool:
        """INITIALIZING: whether this answer is a reason to look in the other era; `related` and `status` as in
        `FrameReceived`."""
        case = rules.of_error(error.error, status)
        if rules.INITIALIZE[case] is not Verdict.LOOK or not refuses(upstream, error, related):
            return False
        why = f"server {spec.name!r} refused to initialize: {refusal_of(error.error)}"
        return self.refused_legacy(spec, surely=case in SURE, said=why)

    def refused_legacy(self, spec: BackendSpec, *, surely: bool, said: str = "") -> bool:
        """`initialize` was refused by what it `said`; whether to look in the other era. If that was done and nothing
        was found, only whoever comes next does so again, unless the first look was not answered in time, or the words
        of the refusal are those of the other era (`surely`)."""
        known = self._of(spec)
        known.refusals["legacy"] = said
        if known.sse:
            return False
        looks = surely or known.silent or known.modern is not False
        known.legacy, known.modern, known.silent = False, known.modern or None, False
        return looks

    def found_sse(self, spec: BackendSpec, speaks: bool) -> None:
        """Whether the server at a URL is one of HTTP+SSE, which is not configured: as such it answers, or does no
        more."""
        if isinstance(spec.target, HttpTarget):
            self._of(spec).sse = speaks

    def asks(self, spec: BackendSpec) -> bool:
        """Whether it is known to ask in the course of calls, and not to say of which."""
        return self._of(spec).asks

    def found_asking(self, spec: BackendSpec) -> None:
        """Notes that this server has asked its client something."""
        self._of(spec).asks = True

    def settled(self, spec: BackendSpec) -> BackendSpec:
        """With the target that it was found to be."""
        target = spec.target
        if isinstance(target, HttpTarget) and self._of(spec).sse:
            return replace(spec, target=SseTarget(target.url, target.headers))
        return spec

    def neither(self, backend: str, spec: BackendSpec | None) -> Failure:
        """That a server speaks no revision of ours, with what it said to `server/discover` and to `initialize`."""
        said = [text for text in self._of(spec).refusals.values() if text] if spec is not None else []
        detail = "; ".join([f"server {backend!r} speaks no known protocol revision", *said])
        return Failure(backend, NO_COMMON_VERSION, without_addresses(detail), Diagnostics(detail=detail))

    def _of(self, spec: BackendSpec) -> _Known:
        known = self._known.get(spec.name)
        if known is None or known.target != spec.target:
            known = self._known[spec.name] = _Known(spec.target, sse=isinstance(spec.target, SseTarget))
        return known
