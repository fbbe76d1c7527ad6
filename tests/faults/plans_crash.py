"""Bugs: an exception where none is expected, in each kind of actor, once, in what it does for the victim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.endpoints import catalogue
from actors.endpoints.catalogue import Catalogue
from actors.endpoints.session_endpoint import SessionEndpoint
from actors.machines.session.events import StreamTurnDue
from actors.sessions import messages as sm
from actors.sessions import router
from actors.sessions.expiry import Expiry, Returned
from actors.sessions.router import Router
from actors.sessions.session import SessionActor
from actors.streams.recorder import Recorder
from actors.upstreams.backends import Backends
from actors.upstreams.legacy import LegacyUpstream
from actors.upstreams.messages import Connected, RequestPermit, UpstreamNotification, UpstreamOutcome, UpstreamRequest
from gateway.native.session import Session as NativeSession
from tests.faults.play import Plan
from tests.faults.world import World


class BugError(Exception):
    """Scripted."""


Which = Callable[[World, Any, tuple[Any, ...]], bool]


def _crash(owner: type, method: str, which: Which, *, after: bool = False, times: int = 1) -> Callable[[World], None]:
    """The first such calls raise: before they have done anything, or when all is done."""

    def install(world: World) -> None:
        seen = 0

        def make(original: Any) -> Any:
            def crashing(self: Any, *args: Any, **more: Any) -> Any:
                nonlocal seen
                if seen == times or not which(world, self, args):
                    return original(self, *args, **more)
                seen += 1
                world.fire(f"{owner.__name__}.{method} {args!r}")
                if after:
                    original(self, *args, **more)
                raise BugError(f"scripted, in {owner.__name__}.{method}")

            return crashing

        world.patch(owner, method, make)

    return install


def _session(*kinds: type) -> Which:
    return lambda world, self, args: isinstance(args[0], kinds) and world.is_victims(self.identity.key)


def _upstream(*kinds: str) -> Which:
    def which(world: World, self: Any, args: tuple[Any, ...]) -> bool:
        bystander = world.bystanders_actor
        return type(args[0]).__name__ in kinds and bystander not in self._subscribers.members

    return which


def _rebuilt(world: World, self: Any, args: tuple[Any, ...]) -> bool:
    return self._record is not None


def _any(*kinds: type) -> Which:
    return lambda world, self, args: isinstance(args[0], kinds)


def _front(world: World, self: Any, args: tuple[Any, ...]) -> bool:
    return world.is_victims(self.host.identity.key)


def _recorder(world: World, self: Any, args: tuple[Any, ...]) -> bool:
    return world.is_victims(self.key)


def _plan(name: str, install: Callable[[World], None], *needs: str, **more: Any) -> Plan:
    return Plan(f"bug: {name}", install, frozenset(needs), crashes=True, **more)


def _handler(error: BaseException) -> Callable[[World], None]:
    """A tool raises this in its middle, once."""

    def install(world: World) -> None:
        left = [error]

        def bug(key: str) -> None:
            if left and not key.startswith("bystander"):
                world.fire(key)
                raise left.pop()

        world.alpha.bug = bug

    return install


def _native(world: World, self: Any, args: tuple[Any, ...]) -> bool:
    return b"tools/call" in args[0] and b"bystander" not in args[0]


PLANS = (
    _plan("the session, at a POST", _crash(SessionActor, "receive", _session(sm.PostMessages))),
    _plan("the session, after a POST", _crash(SessionActor, "receive", _session(sm.PostMessages), after=True)),
    _plan("the session, at an outcome", _crash(SessionActor, "receive", _session(UpstreamOutcome)), "answers"),
    _plan(
        "the session, after an outcome",
        _crash(SessionActor, "receive", _session(UpstreamOutcome), after=True),
        "answers",
    ),
    _plan("the session, at a notification", _crash(SessionActor, "receive", _session(UpstreamNotification)), "report"),
    _plan("the session, at a question", _crash(SessionActor, "receive", _session(UpstreamRequest)), "ask"),
    _plan("the session, when an answer takes long", _crash(SessionActor, "receive", _session(StreamTurnDue)), "slow"),
    _plan("the session, at a GET", _crash(SessionActor, "receive", _session(sm.GetEvents)), "get"),
    _plan("the session, at a resumption", _crash(SessionActor, "receive", _session(sm.GetEvents)), "resume"),
    _plan("the session, at its end", _crash(SessionActor, "receive", _session(sm.EndSession)), "delete"),
    _plan("the session, as it is rebuilt", _crash(SessionActor, "started", _rebuilt), "back"),
    _plan("the session, as it goes on", _crash(SessionActor, "started", _rebuilt, after=True), "goes on"),
    _plan("the front, as a call goes on", _crash(SessionEndpoint, "go_on", _front), "goes on"),
    _plan("the link, as a call goes on", _crash(LegacyUpstream, "receive", _upstream("Continued")), "goes on"),
    _plan(
        "the link, after a call went on",
        _crash(LegacyUpstream, "receive", _upstream("Continued"), after=True),
        "goes on",
    ),
    _plan("the link, as it is put down", _crash(LegacyUpstream, "receive", _upstream("PutDown")), "back"),
    _plan("the expiry, at a session that comes back", _crash(Expiry, "receive", _any(Returned)), "back"),
    _plan("the link, at a call", _crash(LegacyUpstream, "receive", _upstream("Call")), "call"),
    _plan("the link, after a call", _crash(LegacyUpstream, "receive", _upstream("Call"), after=True), "call"),
    _plan("the link, at what the server says", _crash(LegacyUpstream, "receive", _upstream("FromTransport")), "call"),
    _plan("the catalogue, at a question", _crash(Catalogue, "receive", _any(catalogue.Consult)), "lists"),
    _plan("the catalogue, at a list", _crash(Catalogue, "receive", _any(UpstreamOutcome)), "lists"),
    _plan("the router, at a new session", _crash(Router, "receive", _any(router.OpenSession)), "new"),
    _plan("the router, after a new session", _crash(Router, "receive", _any(router.OpenSession), after=True), "new"),
    _plan("the router, at an activation", _crash(Router, "receive", _any(router.Activate)), "back"),
    _plan("the router, at a claim", _crash(Router, "receive", _any(router.Claimed)), "back"),
    _plan("the backends, at a permit", _crash(Backends, "receive", _any(RequestPermit)), "connects", within=31.0),
    _plan("the backends, at a success", _crash(Backends, "receive", _any(Connected)), "connects"),
    _plan("the front, at a call", _crash(SessionEndpoint, "send", _front), "call"),
    _plan("the front, at an outcome", _crash(SessionEndpoint, "outcome", _front), "answers"),
    _plan("the recorder, at an append", _crash(Recorder, "append", _recorder), "opens"),
    _plan("the recorder, at an acknowledgement", _crash(Recorder, "_on_append", _recorder), "opens"),
    _plan("the recorder, at a new stream", _crash(Recorder, "open", _recorder), "opens"),
    _plan(
        "the session, twice",
        _crash(SessionActor, "receive", _session(sm.PostMessages), times=2),
        "steps",
        allowed=frozenset({"gone"}),
    ),
    _plan("a handler of a server in this process", _handler(BugError()), "call", kind="inproc", harmless=True),
    _plan("a handler of a server in this process exits", _handler(SystemExit(3)), "call", kind="inproc", harmless=True),
    _plan("a server in this process", _crash(NativeSession, "_read", _native), "call", kind="inproc"),
)
