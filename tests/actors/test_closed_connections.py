"""What connections, pools, the catalogue and the backends actor are told, and what the machines of connections want,
are closed unions: nothing in them is forgotten, and what is not in them is a bug that shows."""

from __future__ import annotations

from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Raw

from actors.endpoints import catalogue
from actors.machines.modern import suspended_calls
from actors.machines.session.events import Place
from actors.machines.upstream import events as legacy
from actors.machines.upstream import modern_events as modern
from actors.machines.upstream.events import AnswerGiven, Continued, Hold, Notified, Released, Wanted
from actors.machines.upstream.legacy_state import Phase
from actors.pools import messages as pool_messages
from actors.pools import pool
from actors.protocol.diagnostics import NO_DIAGNOSTICS
from actors.runtime import Actor, Ref
from actors.upstreams import legacy as upstream
from actors.upstreams import messages as upstream_messages
from actors.upstreams import modern as modern_upstream
from actors.upstreams.messages import ToBackends, ToUpstream
from tests.support.harness import Gateway, open_gateway
from tests.support.mcp_backend import Backend

FROM_UPSTREAM = {
    upstream_messages.UpstreamReady,
    upstream_messages.UpstreamDown,
    upstream_messages.UpstreamWrongEra,
    upstream_messages.UpstreamOutcome,
    upstream_messages.UpstreamAwaited,
    upstream_messages.UpstreamHeld,
    upstream_messages.UpstreamDue,
    upstream_messages.UpstreamRequest,
    upstream_messages.UpstreamWithdrew,
    upstream_messages.UpstreamNotification,
    upstream_messages.UpstreamPlaced,
}

FOR_RECORDS = {upstream_messages.UpstreamHeld, upstream_messages.UpstreamDue, upstream_messages.UpstreamAwaited}
"""Told only to those who ask a connection to hold calls."""


def defined_in(module: ModuleType) -> set[type]:
    return {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    }


def one_of_each(caller: Ref) -> list[Any]:
    """A message of every kind that a connection is told."""
    m = upstream_messages
    return [
        m.Join(caller),
        Wanted(),
        m.Call(caller, 1, "tools/list"),
        m.Cancel(caller, 1, "no more"),
        Hold((caller, 2)),
        Released((caller, 2)),
        Continued((caller, 3), "tools/call", False, Place("x", None)),
        AnswerGiven("none", True, Raw(b"{}")),
        Notified("notifications/x"),
        m.PeerNotified("notifications/x"),
        m.Granted(),
        m.Denied(Raw(b'{"code":1,"message":""}')),
        m.Recount(),
        m.Spare(),
        m.Leave(caller),
        m.PutDown(caller),
    ]


def for_backends(caller: Ref) -> list[Any]:
    m = upstream_messages
    return [
        m.RequestPermit(caller, "alpha"),
        m.Connected("alpha"),
        m.Failure("alpha", "x", "x", NO_DIAGNOSTICS),
        m.UpstreamMoved(caller, "alpha", Phase.READY),
        m.Returned(caller),
        m.Present(caller, "alpha", Phase.READY, False, False),
    ]


class Caller(Actor):
    def __init__(self) -> None:
        self.outcomes: list[upstream_messages.UpstreamOutcome] = []

    def receive(self, message: Any) -> None:
        if isinstance(message, upstream_messages.UpstreamOutcome):
            self.outcomes.append(message)


def a_connection(gateway: Gateway, era: str) -> Ref:
    spec, services, tree = gateway.services.table.value.backends["alpha"], gateway.services, gateway.actors.tree
    if era == "modern":
        return tree.upstreams.start_child(modern_upstream.ModernUpstream(spec, services, tree.backends, tree.eras))
    profile = upstream.Profile(Raw(b"{}"), Raw(b"{}"), False, "p")
    return tree.upstreams.start_child(upstream.LegacyUpstream(spec, profile, services, tree.backends))


def test_every_message_of_connections_is_in_a_union() -> None:
    told = set(get_args(ToUpstream)) | set(get_args(ToBackends))
    assert defined_in(upstream_messages) <= told | FROM_UPSTREAM


def test_every_event_and_effect_of_both_machines_is_in_its_union() -> None:
    values = {legacy.ServerInfo}
    assert defined_in(legacy) - values <= set(get_args(legacy.UpstreamEvent)) | set(get_args(legacy.UpstreamEffect))
    assert defined_in(modern) - {modern.Caller} <= set(get_args(modern.Event)) | set(get_args(modern.Effect))


def test_a_connection_of_either_era_does_whatever_its_machine_wants() -> None:
    assert set(get_args(legacy.UpstreamEffect)) <= upstream.EFFECTS.keys()
    assert set(get_args(modern.Effect)) <= modern_upstream.EFFECTS.keys()


def test_a_pool_knows_every_message_that_it_may_be_told() -> None:
    told = {pool_messages.UpstreamSuspended, pool_messages.Admitted, pool_messages.NotHere}  # by a pool
    own = defined_in(pool_messages) - told
    assert own | (FROM_UPSTREAM - FOR_RECORDS) <= set(get_args(pool.PoolMessage))


def test_every_event_and_effect_of_a_pool_is_in_its_union() -> None:
    events, values = (
        set(get_args(suspended_calls.SuspensionEvent)),
        {suspended_calls.Rules, suspended_calls.Question, suspended_calls.Held, suspended_calls.Calls},
    )
    assert defined_in(suspended_calls) - values == events | set(get_args(suspended_calls.SuspensionEffect))
    assert suspended_calls.OF_CALLS.keys() | suspended_calls.OF_ALL.keys() == events
    assert pool.EFFECTS.keys() == set(get_args(suspended_calls.SuspensionEffect))


def test_the_catalogue_knows_every_message_that_it_may_be_told() -> None:
    answers = {catalogue.Listed, catalogue.CatalogueChanged}
    assert defined_in(catalogue) - answers <= set(get_args(catalogue.Message))
    assert set(get_args(catalogue.Message)) >= FROM_UPSTREAM - FOR_RECORDS


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_connection_knows_every_message_that_one_may_be_told(autojump_clock: Any, era: str) -> None:
    async with open_gateway(Backend("alpha")) as gateway:
        caller = Caller()
        me = gateway.system.spawn(caller)
        messages = one_of_each(me)
        assert {type(message) for message in messages} == set(get_args(ToUpstream))
        ref = a_connection(gateway, era)
        for message in messages:
            ref.reply(message)
            await gateway.settle()
        assert not gateway.crashes


async def test_the_backends_actor_knows_every_message_that_it_may_be_told(autojump_clock: Any) -> None:
    async with open_gateway(Backend("alpha")) as gateway:
        messages = for_backends(gateway.system.spawn(Caller()))
        assert {type(message) for message in messages} == set(get_args(ToBackends))
        for message in messages:
            gateway.actors.tree.backends.reply(message)
            await gateway.settle()
        assert not gateway.crashes


async def test_a_call_to_go_on_with_at_a_server_without_sessions_gets_an_error(autojump_clock: Any) -> None:
    async with open_gateway(Backend("alpha")) as gateway:
        caller = Caller()
        me = gateway.system.spawn(caller)
        ref = a_connection(gateway, "modern")
        ref.reply(upstream_messages.Join(me))
        ref.reply(Continued((me, 3), "tools/call", False, Place("x", None)))
        await gateway.settle()
        [outcome] = caller.outcomes
        assert (outcome.call, outcome.ok) == (3, False)


@pytest.mark.parametrize("who", ["legacy", "modern", "backends", "catalogue"])
async def test_a_message_that_nobody_knows_does_not_vanish(autojump_clock: Any, who: str) -> None:
    async with open_gateway(Backend("alpha")) as gateway:
        ref = a_connection(gateway, who) if who in ("legacy", "modern") else gateway.system.registry.whereis(who)
        assert ref is not None
        ref.reply("something else")
        await gateway.settle()
        [(_, error)] = gateway.crashes
        assert isinstance(error, AssertionError)
        gateway.crashes.clear()
