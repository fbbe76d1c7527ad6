"""What one principal may have of the process, and what there is of everything over all of them.

A call visits a quota only if its principal has a bound; what there is in all is a number that is counted in place.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from msgspec import Struct

from actors.ports import Principal, Telemetry
from actors.protocol.table import Limits
from actors.runtime import Actor, AtCapacity, DynamicSupervisor, Exit, Ref


class Quota:
    """How many of one kind each principal has, and how many it may have: `anonymous` bounds the anonymous principal,
    which is everybody, `each` any other one. 0 is no bound."""

    __slots__ = ("_anonymous", "_each", "_of", "total")

    def __init__(self, each: int, anonymous: int = 0) -> None:
        self._each = each
        self._anonymous = anonymous
        self._of: dict[str, int] = {}
        self.total = 0
        """Of all principals."""

    def bound_by(self, each: int, anonymous: int = 0) -> None:
        """So many from now on; who has more keeps them."""
        self._each, self._anonymous = each, anonymous

    def most(self, principal: Principal) -> int:
        """How many this one may have; 0: there is no bound."""
        return self._anonymous if principal.anonymous else self._each

    def has(self, principal: Principal) -> bool:
        """Whether this principal has any."""
        return principal.name in self._of

    def room(self, principal: Principal, more: int = 1) -> bool:
        """Whether it may have so many more."""
        most = self._anonymous if principal.anonymous else self._each
        return not most or self._of.get(principal.name, 0) + more <= most

    def take(self, principal: Principal) -> bool:
        """It has one more, if it may."""
        most = self._anonymous if principal.anonymous else self._each
        if most:
            count = self._of.get(principal.name, 0)
            if count >= most:
                return False
            self._of[principal.name] = count + 1
        self.total += 1
        return True

    def add(self, principal: Principal, change: int = 1) -> None:
        """It has so many more, or less."""
        self.total += change
        if not (self._anonymous if principal.anonymous else self._each):
            return
        count = self._of.get(principal.name, 0) + change
        if count:
            self._of[principal.name] = count
        else:
            self._of.pop(principal.name, None)

    def recount(self, principals: Iterable[Principal]) -> None:
        """It has lost count: these are all that there are."""
        self._of.clear()
        self.total = 0
        for principal in principals:
            self.add(principal)


class Quotas:
    """The quotas of one process."""

    def __init__(self, limits: Limits) -> None:
        self.sessions = Quota(limits.sessions_per_principal, limits.sessions_anonymous)
        """In memory, or about to be."""
        self.requests = Quota(limits.requests_per_principal)
        """In flight, over all sessions and without one."""
        self.listens = Quota(limits.requests_per_principal)
        """`subscriptions/listen`, those that are not acknowledged yet included."""
        self.modern_requests = 0
        """Requests without a session that are in flight; they are among `requests`."""
        self.streams: Counter[str] = Counter()
        """Connections that carry a stream: `post`, `get` or `listen`."""

    def bound_by(self, limits: Limits) -> None:
        """These limits count from now on."""
        self.sessions.bound_by(limits.sessions_per_principal, limits.sessions_anonymous)
        self.requests.bound_by(limits.requests_per_principal)
        self.listens.bound_by(limits.requests_per_principal)


# --------------------------------------------------------------------------------------------- modern clients


class QuotaReached(AtCapacity):
    """There may be room, but not for this principal."""


class Evict(Struct, frozen=True):
    """There are too many that are idle: end, if nothing has come meanwhile."""


class ClientGone(Struct, frozen=True):
    """Its client will not come again: end, as soon as nothing is in hand."""


class Evictable(Actor):
    """An actor that `QuotaSupervisor` may end while it is idle."""

    supervisor: "QuotaSupervisor | None" = None

    def idle(self) -> None:
        """To be called when it has nothing in hand any more."""
        if self.supervisor is not None:
            self.supervisor.idle(self.ctx.ref)

    def busy(self) -> None:
        """To be called when it has something in hand again."""
        if self.supervisor is not None:
            self.supervisor.busy(self.ctx.ref)


class QuotaSupervisor(DynamicSupervisor):
    """Supervises what is kept for modern clients; each child is somebody's.

    A modern client says itself which of its requests belong together, by what it can be asked and by a header; each
    of its words is another client. So a principal passes for no more of them than it may have sessions. The
    anonymous principal is everybody, and nobody of them is refused for what others do: so many of its idle ones are
    kept, and of more the one that has been idle for longest is evicted.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.sessions)
        self._quota = Quota(limits.sessions_per_principal, limits.sessions_anonymous)
        self._idle_most = limits.sessions_per_principal
        self._idle: dict[Ref, None] = {}
        """Of the anonymous principal, longest first."""
        self._owners: dict[str, tuple[Principal, str]] = {}
        """By the name of a child: whose it is, and by what word of his own it is one client's."""
        self._by_word: dict[str, set[Ref]] = {}

    def bound_by(self, limits: Limits) -> None:
        """These limits count from now on."""
        self._quota.bound_by(limits.sessions_per_principal, limits.sessions_anonymous)
        self._idle_most = limits.sessions_per_principal

    def start_for(self, principal: Principal, actor: Evictable, name: str, word: str = "") -> Ref:
        """Starts a child of this principal's, for the client with this word. Raises what `start_child` does, and
        QuotaReached."""
        if not self._quota.room(principal):
            raise QuotaReached(f"{principal.name} has {self._quota.most(principal)} of {self.ctx.name}")
        ref = self.start_child(actor, name)
        self._owners[ref.name] = principal, word
        if word:
            self._by_word.setdefault(word, set()).add(ref)
        self._quota.add(principal)
        if principal.anonymous and not self._quota.most(principal):
            actor.supervisor = self
        return ref

    def of(self, principal: Principal) -> list[Ref]:
        """This principal's children."""
        if not self._quota.has(principal):
            return []
        return [ref for ref in self.children() if self._owners.get(ref.name, (None, ""))[0] == principal]

    def client_gone(self, word: str) -> None:
        """Nobody will come with this word any more."""
        for ref in self._by_word.get(word, ()):
            ref.reply(ClientGone())

    def idle(self, ref: Ref) -> None:
        """Notes that this child has nothing in hand, and evicts the one that is idle for longest if there are too
        many."""
        self._idle.pop(ref, None)
        self._idle[ref] = None
        if self._idle_most and len(self._idle) > self._idle_most:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.reply(Evict())

    def busy(self, ref: Ref) -> None:
        """Notes that this child has something in hand."""
        self._idle.pop(ref, None)

    def child_ended(self, ref: Ref, reason: Exit) -> None:
        super().child_ended(ref, reason)
        self._idle.pop(ref, None)
        owner, word = self._owners.pop(ref.name, (None, ""))
        if owner is not None:
            self._quota.add(owner, -1)
        if word:
            self._by_word[word].discard(ref)
            if not self._by_word[word]:
                del self._by_word[word]


PATIENCE = 60.0
"""Seconds for which a call is suspended in any case, from its first server request on."""


class _Suspended(Struct, frozen=True):
    principal: Principal
    since: float
    give_way: Callable[[], object]


class SuspendedCalls:
    """The calls that wait for answers of modern clients, over all their pools.

    Nobody can tell one that was left for good from one whose user takes their time. So each has its place for a while,
    and after that it has it as long as nobody else needs one. The anonymous principal is one like any other.
    """

    def __init__(self, limit: int, telemetry: Telemetry) -> None:
        """`limit`: of one principal."""
        self._quota = Quota(limit, limit)
        self._telemetry = telemetry
        self._calls: dict[Hashable, _Suspended] = {}

    @property
    def total(self) -> int:
        """How many are suspended, of all principals."""
        return self._quota.total

    def room(self, principal: Principal, now: float) -> bool:
        """Whether one more may be suspended. If it takes that, the one that is for longest gives way."""
        if self._quota.room(principal):
            return True
        mine = [key for key, call in self._calls.items() if call.principal.name == principal.name]
        longest = min(mine, key=lambda key: self._calls[key].since)
        if now - self._calls[longest].since < PATIENCE:
            return False
        self._calls[longest].give_way()
        self.remove(longest)
        return True

    def add(self, principal: Principal, key: Hashable, since: float, give_way: Callable[[], object]) -> None:
        """A call is suspended, and was for the first time at `since`."""
        self._calls[key] = _Suspended(principal, since, give_way)
        self._count(principal, 1)

    def remove(self, key: Hashable) -> None:
        """A call is suspended no more."""
        call = self._calls.pop(key, None)
        if call is not None:
            self._count(call.principal, -1)

    def _count(self, principal: Principal, change: int) -> None:
        self._quota.add(principal, change)
        self._telemetry.gauge("stagedoor_parked_calls", float(self.total))
