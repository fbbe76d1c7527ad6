"""What a link passes on to those who joined it: what its backend says, and how it is."""

from actors.links.link_messages import (
    Call,
    LinkAsked,
    LinkDown,
    LinkPlaced,
    LinkReady,
    LinkTold,
    LinkUnfit,
    LinkWithdrew,
)
from actors.links.subscribers import Subscribers
from actors.ports import Kept
from actors.protocol import link_events as ev
from actors.runtime import Ref


def key_of(call: ev.CallKey) -> tuple[Ref, int]:
    """What the machine carries as an opaque key."""
    assert isinstance(call, tuple)
    return call


class Telling:
    """Of one link."""

    def __init__(self, link: Ref, backend: str, audience: Subscribers) -> None:
        self._link = link
        self._backend = backend
        self._audience = audience

    def asks(self, effect: ev.Ask) -> bool:
        """A question goes to the caller, or else to the only one who joined: never to a guess among several. False if
        nobody may be asked: a shared connection declared no client at all, and the answer would be anybody's."""
        target, call = key_of(effect.call) if effect.call is not None else (self._audience.only(), None)
        if target is None or self._audience.shared:
            return False
        asked = LinkAsked(self._link, self._backend, call, effect.id, effect.method, effect.params, effect.place)
        target.reply(asked)
        return True

    def withdraws(self, effect: ev.Withdraw) -> None:
        """It does not want to know any more."""
        for ref in self._audience.members:
            ref.reply(LinkWithdrew(self._backend, effect.id, self._link))

    def tells(self, effect: ev.Tell) -> None:
        """A notification."""
        to, call = key_of(effect.call) if effect.call is not None else (None, None)
        place = None if self._audience.shared else effect.place
        self._audience.tell(LinkTold(self._link, self._backend, call, effect.method, effect.params, place), to)

    def passes(self, told: LinkTold, to: Ref) -> None:
        """A notification for one of them, in the course of no call."""
        self._audience.tell(told, to)

    def placed(self, effect: ev.Placed) -> None:
        """Of a shared connection nothing can be continued: it is nobody's."""
        to, call = key_of(effect.call) if effect.call is not None else (self._audience.only(), None)
        if to is not None and not self._audience.shared:
            to.reply(LinkPlaced(self._link, self._backend, call, effect.place))

    def ready(self, effect: ev.Ready, kept: Kept | None) -> None:
        """It is up."""
        for ref in self._audience.members:
            ref.reply(LinkReady(self._link, self._backend, effect.hello, effect.again, kept))

    def down(self, effect: ev.Down) -> None:
        """It is not."""
        for ref in self._audience.members:
            ref.reply(LinkDown(self._link, self._backend, effect.message, effect.payload))

    def unfit(self, effect: ev.Unfit) -> None:
        """It is of the other era: each gets back what was not sent for them."""
        for ref in self._audience.members:
            mine = (called for called in effect.calls if key_of(called.call)[0] is ref)
            calls = (Call(ref, key_of(c.call)[1], c.method, c.params, c.progress) for c in mine)
            ref.reply(LinkUnfit(self._link, self._backend, tuple(calls)))
