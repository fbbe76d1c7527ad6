"""What an endpoint is made of: its connections (`upstreams`), how servers' things are named (`single`, `merged`), and
the rules of its client, which are those of a session (`session_endpoint`) or of modern requests
(`actors.modern.endpoint`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from actors.endpoints.connecting import (
    CONNECT,
    AboutAccounts,
    AccountChanged,
    Connecting,
    Invited,
    Waited,
    connected,
)
from actors.endpoints.guard import LINK, Guard, Passed, Unmet
from actors.endpoints.host import Host, Tree
from actors.endpoints.limiting import Limiting, Weighed
from actors.endpoints.upstreams import Dialer, Upstreams
from actors.machines.session import effects as fx
from actors.machines.session import events as ev
from actors.machines.upstream.events import ServerInfo
from actors.machines.upstream.legacy_state import Profile
from actors.protocol import aggregate, errors, tasks
from actors.protocol import payload as json
from actors.protocol.capabilities import ClientBits
from actors.protocol.messages import EMPTY
from actors.protocol.methods import CHANGED
from actors.protocol.rights import Rights
from actors.protocol.table import BackendSpec
from actors.runtime import Ref
from actors.services import Services
from actors.upstreams.messages import Call, UpstreamOutcome

if TYPE_CHECKING:
    from actors.endpoints.merged import AboutLists, Merged
    from actors.endpoints.pinning import Pinning

STEP_UP = "insufficient_scope"
"""The kind of refusal that has an HTTP status of its own, as long as it is all that is said."""

NEWS = frozenset(CHANGED.values())
"""What servers say when a list has changed."""


class Naming(Protocol):
    """How the things of an endpoint's servers are named, as the endpoint sees it."""

    merges: bool
    """Whether there are several servers, whose things have other names here."""

    @property
    def configured(self) -> bool:
        """Whether the endpoint is there, as the configuration is at present."""

    def unconfigured(self) -> errors.ProtocolError:
        """What is said where it is not."""

    def route(self, effect: fx.Dispatch) -> None:
        """A request for a server: it is sent, answered or refused, now or later."""

    def question(self, backend: str, method: str, params: Raw) -> Raw:
        """The params of what a server asks, in the client's words."""

    def annotations(self, backend: str, tool: str) -> Any:
        """Those of a tool, as far as lists are known; None: nothing is."""

    def owner(self, uri: str) -> tuple[str, str] | None:
        """Whose a URI is, and what it is called there."""

    def look_for(self, uris: tuple[str, ...], then: Callable[[], None]) -> None:
        """Brings up to date what tells whose these URIs are."""


class Endpoint(ABC):
    """An endpoint for one client: what does not depend on the client's rules, and what its parts ask of these."""

    era: str
    """Of its clients: `legacy` or `modern`."""
    many = False
    """Whether it serves several clients who are told of changes: what one is given is news to the others."""
    naming: Naming
    merged: "Merged | None" = None
    """The naming, where there are several servers."""
    pinning: "Pinning | None" = None
    """What is known of definitions that had to be accepted, as soon as any had."""

    def __init__(self, host: Host, name: str, services: Services, tree: Tree, dialer: Dialer) -> None:
        self.host = host
        self.name = name
        self.services = services
        self.tree = tree
        self.upstreams = Upstreams(host, name, services, tree, dialer, self)
        self.guard = Guard(host, services, self)
        self.limiting = Limiting(self, self.guard, services, host)
        self.connecting = Connecting(self, services, host)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.statistics()}>"

    @property
    def calls(self) -> dict[int, str]:
        """Those that are under way, and the servers that run them."""
        return self.upstreams.calls

    def statistics(self) -> dict[str, int]:
        """How much it remembers of what is under way."""
        naming = self.merged.pending if self.merged is not None else 0
        held = self.connecting.pending + len(self.limiting.waiting)
        held += self.pinning.pending if self.pinning is not None else 0
        return {"calls": len(self.calls), "waiters": len(self.upstreams.waiters), "naming": naming, "held": held}

    def annotations(self, backend: str, tool: str) -> Any:
        """As in `Naming`."""
        return self.naming.annotations(backend, tool)

    # The client's rules

    @property
    def unheard(self) -> bool:
        """Whether it is not known yet with what rights its client asks: it is told nothing of lists until then."""
        return False

    @property
    @abstractmethod
    def bits(self) -> ClientBits:
        """What the client can be asked, as far as servers hear of it."""

    @property
    def words(self) -> str:
        """The revision of the client, if what it asks passes as it is to a server of the same one; else ""."""
        return ""

    @abstractmethod
    def profile(self, spec: BackendSpec) -> Profile:
        """What a server is told of the client over a connection that is not its own."""

    @abstractmethod
    def server_info(self, backend: str) -> ServerInfo | None:
        """What a server said of itself, to this client or to another."""

    @abstractmethod
    def lists_itself(self, backend: str) -> bool:
        """Whether a server is asked for its lists over the connection of this client, which may see other things than
        others."""

    @abstractmethod
    def as_is(self, backend: str) -> bool:
        """Whether what this server says passes as it is."""

    @abstractmethod
    def send(self, effect: fx.Dispatch, backend: str, params: Raw, *, waited: bool = False) -> None:
        """Passes a request on to its server. It has `waited` where the server was not known at once."""

    @abstractmethod
    def redirect(self, backend: str, upstream: Ref, calls: list[Call]) -> None:
        """The server is of the other era than it was taken for: these calls, which were not sent, and what else is
        wanted of it, go over this connection."""

    @abstractmethod
    def disconnected(self, backend: str, was_up: bool) -> None:
        """Nothing is heard from this server any more."""

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Keeps this in the client's record, if there is one."""
        return  # modern clients have none

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """Acts as soon as no record says of this call that it was not sent."""
        act()

    def judge(self, effect: fx.Dispatch, backend: str, params: Raw, *, waited: bool = False) -> None:
        """Sends a request on its way, if its client may ask that. `waited` as in `send`."""
        table = self.services.table.value
        spec = table.backends.get(backend)
        if spec is None or (
            table.policy is None
            and spec.enabled_tools is None
            and not spec.disabled_tools
            and spec.pins is None
            and not self.services.audit.on  # the trail names what its server takes it for
        ):
            self.send(effect, backend, params, waited=waited)
            return
        try:
            passed = self.guard.check(effect, spec, params)
            if spec.pins is not None and spec.pins.blocks and not self._pinned(effect, spec, passed):
                return
        except Unmet as constraint:
            self.end(effect.call, True, errors.as_result(str(constraint)))
        except errors.Refusal as refused:
            self.refuse(effect.call, refused.error)
        else:
            self.let_through(effect, backend, passed, waited=waited)

    def let_through(self, effect: fx.Dispatch, backend: str, passed: Passed, *, waited: bool) -> None:
        """Sends a request on its way that is kept back by limits alone. `waited` as in `send`."""
        if passed.due:
            self.limiting.weigh(effect, backend, passed, waited=waited)
        else:
            self.send(effect, backend, passed.params, waited=waited)

    def _pinned(self, effect: fx.Dispatch, spec: BackendSpec, passed: Passed) -> bool:
        """Whether what is asked for is defined as it was accepted; if that is not known yet, the request comes here
        again. Raises Refusal."""
        if self.pinning is None:
            from actors.endpoints.pinning import Pinning  # only where there are pins

            self.pinning = Pinning(self)
        return self.pinning.passes(effect, spec, passed)

    # Calls that wait for their user's account (as `connecting.Asker`)

    @abstractmethod
    def client_info(self, call: int) -> Raw:
        """What the client whose call it is says of itself."""

    @abstractmethod
    def ask(self, call: int, id: str, params: Raw) -> None:
        """Sends the user to a page."""

    def accepted(self, call: int) -> bool:
        """Whether the client comes again with this call, and says that its user has gone to the page."""
        return False

    @abstractmethod
    def complete(self, params: Raw) -> None:
        """The user has been to the page."""

    def again(self, effect: fx.Dispatch) -> None:
        """Makes a call anew: whether it may be made is decided again."""
        self.leave(effect.call, lambda: self.guard.asking(effect.rights, lambda: self.dispatch(effect)))

    @abstractmethod
    def dispatch(self, effect: fx.Dispatch) -> None:
        """A request of the client; `CallEnded` follows, now or later."""

    def connects(self, effect: fx.Dispatch, backend: str, params: Raw) -> bool:
        """Whether a call is for the tool of ours that stands for this server, or has to wait for an account first."""
        connecting = self.connecting
        connecting.note(effect, backend)
        if self.merged is None or not self.merged.listing.stands_for(backend) or effect.method != "tools/call":
            return False
        if json.text_member(params, "name") != CONNECT:
            return False
        connecting.noted.pop(effect.call, None)
        if effect.as_task:
            self.refuse(effect.call, tasks.no_task_of(effect.method))
        elif not connecting.lacks(backend):
            self.end(effect.call, True, connected(backend))
        elif not connecting.hold(effect, backend):
            self.refuse(effect.call, errors.internal("it is not connected", reason="not_connected", executed="no"))
        return True

    def about_accounts(self, message: AboutAccounts) -> None:
        """Something has become of an account, or of a call that waits for one."""
        if not isinstance(message, AccountChanged):
            self.connecting.receive(message)
            return
        backend = message.backend
        self.upstreams.renew(backend)
        self.connecting.changed(backend)
        for notification in sorted(NEWS):
            if self.merged is not None:
                self.merged.changed(backend, notification)
            elif notification == CHANGED["tools/list"]:
                self.host.event(ev.CallProgressed(backend, None, notification, EMPTY, self.host.ctx.now()))

    # How calls end

    def outcome(self, message: UpstreamOutcome) -> None:
        """A server has answered a call, or can't."""
        if message.call in self.connecting.noted and self._held(message):
            return
        if self.pinning is not None:
            message = self.pinning.worded(message)
        if self.services.table.value.policy is not None and (
            self.merged is not None or (message.ok and json.mentions(message.payload, LINK))
        ):
            ruled = message
            message = self.guard.asking(self.rights_of(message.call), lambda: self._shown(ruled))
        elif self.merged is not None:
            message = self.merged.exposed(message)
        call = message.call
        self.upstreams.over(call)
        if call < 0 or call in self.upstreams.waiters:
            self.upstreams.settle(message)
        else:
            self.pass_outcome(message)

    def rights_of(self, call: int) -> Rights | None:
        """With what rights this was asked for; None: it is not known."""
        return self.upstreams.rights.get(call)

    def _shown(self, message: UpstreamOutcome) -> UpstreamOutcome:
        """What the client may see of an outcome, in its words."""
        if message.ok:
            shown = self.guard.without_hidden(message.backend, message.payload)
            message = replace(message, payload=shown) if shown is not message.payload else message
        return message if self.merged is None else self.merged.exposed(message)

    def _held(self, message: UpstreamOutcome) -> bool:
        """Whether this call is not over: it waits for an account."""
        if not self.connecting.takes(message):
            return False
        call = message.call
        self.upstreams.over(call)
        self.upstreams.waiters.pop(call, None)
        if self.merged is not None:
            self.merged.forget(call)
        return True

    def pass_outcome(self, message: UpstreamOutcome) -> None:
        """The client's machine gets the outcome of a call."""
        as_is = self.merged is None and self.as_is(message.backend)
        self.host.event(ev.CallEnded(message.call, message.ok, message.payload, as_is))

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        """Gives a call its outcome."""
        self.forget(call)
        self.upstreams.waiters.pop(call, None)
        if call > 0:
            self.host.event(ev.CallEnded(call, ok, payload))

    def refuse(self, call: int, error: errors.ProtocolError) -> None:
        """Gives a call an error of the gateway's own."""
        if error.kind != STEP_UP:
            self.end(call, False, error.raw)
        else:
            self.forget(call)
            self.upstreams.waiters.pop(call, None)
            self.host.event(ev.CallEnded(call, False, error.raw, refusal=error))

    def cancel(self, call: int, reason: str) -> None:
        """Nobody waits for this call any more."""
        self.forget(call)
        self.upstreams.cancel(call, reason)

    def forget(self, call: int) -> None:
        """What its parts remember of a call is of no use any more."""
        self.connecting.forget(call)
        if self.pinning is not None:
            self.pinning.forget(call)
        self.limiting.forget(call)
        if self.merged is not None:
            self.merged.forget(call)

    def instructions(self, said: Mapping[str, ServerInfo]) -> dict[str, object]:
        """What several servers say of how to use them, as a member of a result; without one, if they say nothing."""
        table = self.services.table.value
        told = [(b, self.guard.introduced(b, server_info.instructions)) for b, server_info in said.items()]
        parts = [(b, text) for b, text in told if text]
        text = aggregate.merge_instructions(parts, table.separator, backends=table.backends)
        return {"instructions": text} if text is not None else {}

    # Lists

    def news(self, backend: str, method: str) -> bool:
        """A notification of a server, which may say that a list has changed: whether nothing else is to be said of it,
        since merged lists are compared first."""
        if method not in NEWS:
            return False
        if self.pinning is not None:
            self.pinning.changed(backend, method)
        # Over a connection that several share, those who keep what it lists hear it themselves.
        self.outdated(backend, method, heard=self.upstreams.shares(backend))
        return self.merged is not None

    def outdated(self, backend: str, notification: str, *, heard: bool = False) -> None:
        """A list of this server may be another one, of which it would say this. Unless that was `heard`, it is said to
        whoever shows the last one known: what has changed for one client may have changed for everybody."""
        if not heard:
            self.tree.changes[backend, notification] += 1
        if self.merged is not None:
            self.merged.changed(backend, notification)

    def connected(self, backend: str, server_info: ServerInfo) -> None:
        """A connection is up: who waits for it, or for its lists, goes on."""
        if self.merged is not None and self.lists_itself(backend):
            self.merged.listing.connected(backend)
        self.upstreams.tell_waiting(backend, server_info)

    def about_lists(self, message: "AboutLists | AboutAccounts | Weighed") -> None:
        """Something has become of a merged list, or of an account, which is part of what lists are; or a call has been
        weighed."""
        if isinstance(message, Weighed):
            self.limiting.weighed(message)
            return
        if isinstance(message, Invited | Waited | AccountChanged):
            self.about_accounts(message)
            return
        if self.merged is not None:
            self.merged.receive(message)

    def let_go(self) -> None:
        """Its actor has ended. Its parts point back at it: it drops them, so that their memory is free at once."""
        if self.merged is not None:
            self.merged.let_go()
        self.upstreams.let_go()
        vars(self).clear()
