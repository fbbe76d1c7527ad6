"""What an actor is told, and what its machine wants, are closed unions: nothing in them is forgotten, and what is not
in them is a bug that shows."""

from __future__ import annotations

from types import ModuleType
from typing import Any, get_args

import msgspec

from actors import record
from actors.cluster import holder, mailer, owner, remote, sweeper
from actors.endpoints import catalogue
from actors.machines.cluster import follow, lease, route
from actors.machines.modern import request as exchange
from actors.machines.modern import subscription
from actors.machines.session import effects, events
from actors.modern import requests as exchanges
from actors.modern import subscriptions
from actors.pools import guest, pool
from actors.pools import letters as pool_letters
from actors.pools import messages as pool_messages
from actors.pools import remote as remote_pools
from actors.runtime import Down
from actors.sessions import expiry, router, verifier
from actors.sessions import messages as session_messages
from actors.sessions.session import SessionActor, SessionMessage
from actors.upstreams import messages as um
from tests.support.harness import open_gateway
from tests.support.mcp_backend import Backend


def defined_in(module: ModuleType) -> set[type]:
    return {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    }


def test_every_message_of_a_session_is_one_that_its_actor_takes() -> None:
    answers = {session_messages.Description}
    assert defined_in(session_messages) - answers <= set(get_args(SessionMessage))


def test_every_effect_and_every_event_of_a_session_is_in_its_union() -> None:
    assert defined_in(effects) == set(get_args(effects.SessionEffect))
    assert defined_in(events) - {events.Place} == set(get_args(events.SessionEvent))


async def test_a_message_that_a_session_does_not_know_does_not_vanish(autojump_clock: Any) -> None:
    async with open_gateway(Backend("alpha")) as gateway:
        await gateway.connect("alpha")
        (alive,) = gateway.actors.sessions.table.values()
        assert isinstance(alive.ref.cell.actor, SessionActor)
        alive.ref.reply("something else")
        await gateway.settle()
        [(_, error)] = gateway.crashes
        assert isinstance(error, AssertionError)
        gateway.crashes.clear()


# Modern requests --------------------------------------------------------------------------------------------

TOLD = {
    um.UpstreamReady,
    um.UpstreamDown,
    um.UpstreamWrongEra,
    um.UpstreamOutcome,
    um.UpstreamRequest,
    um.UpstreamWithdrew,
    um.UpstreamNotification,
    pool_messages.UpstreamSuspended,
    catalogue.Listed,
    catalogue.CatalogueChanged,
}
"""By connections to modern servers, by pools and by the catalogue."""


def test_every_message_of_modern_requests_is_one_that_their_actor_takes() -> None:
    own = defined_in(exchanges) | defined_in(subscriptions)
    assert own - {exchanges.Kind} | TOLD <= set(get_args(exchanges.RequestsMessage))


def test_every_effect_and_every_event_of_a_modern_request_is_in_its_union() -> None:
    effects = set(get_args(exchange.ModernRequestEffect))
    own = {kind for kind in defined_in(exchange) if not kind.__name__.startswith("_")}
    assert own - {exchange.ModernRequest} == effects | set(get_args(exchange.ModernRequestEvent))


def test_every_effect_and_every_event_of_a_subscription_is_in_its_union() -> None:
    effects = set(get_args(subscription.SubscriptionEffect))
    own = defined_in(subscription) - {subscription.Subscription}
    assert own == effects | set(get_args(subscription.SubscriptionEvent))


# Pools ------------------------------------------------------------------------------------------------------

MAILED = set(get_args(pool_letters.ToOwner)), set(get_args(pool_letters.ToHolder))


def test_every_message_of_a_pool_is_one_that_its_actor_takes() -> None:
    told = {pool_messages.UpstreamSuspended, pool_messages.Admitted, pool_messages.NotHere}
    assert defined_in(pool_messages) - told <= set(get_args(pool.PoolMessage))
    assert told <= set(get_args(guest.GuestMessage))
    own = set(get_args(pool.PoolMessage)) - set(get_args(pool.OfOwner))
    own -= {record.Stored, pool_messages.LateDue}
    assert own == set(get_args(remote_pools.RemoteMessage))


def test_every_message_between_replicas_about_pools_is_of_one_side() -> None:
    said = {kind for kind in defined_in(pool_letters) if not kind.__name__.startswith("_")}
    assert said == MAILED[0] | MAILED[1]
    assert not MAILED[0] & MAILED[1]


# The cluster ------------------------------------------------------------------------------------------------


def test_every_effect_and_every_event_of_the_machines_of_a_cluster_is_in_its_union() -> None:
    unions = (
        (route, route.RouteEvent, route.RouteEffect, {route.Letter, route.Route}),
        (follow, follow.FollowEvent, follow.FollowEffect, {follow.Entry, follow.Follow}),
        (lease, lease.LeaseEvent, lease.LeaseEffect, {lease.Lease}),
    )
    for module, told, wanted, values in unions:
        assert defined_in(module) - values == set(get_args(told)) | set(get_args(wanted))
        assert set(module.HANDLERS) == set(get_args(told))


# Those that are there once -----------------------------------------------------------------------------------


def test_every_message_of_the_router_the_expiry_the_verifier_and_the_sweeper_is_one_that_they_take() -> None:
    values = {router.Alive, router.Elsewhere, expiry.Ending}
    elsewhere = {Down, record.Renamed}
    for module, union in (
        (router, router.RouterMessage),
        (expiry, expiry.ExpiryMessage),
        (verifier, verifier.VerifierMessage),
        (sweeper, sweeper.SweeperMessage),
    ):
        assert defined_in(module) - values == set(get_args(union)) - elsewhere, module.__name__


def test_every_message_of_the_mailer_is_one_that_it_takes() -> None:
    assert defined_in(holder) | {remote.Send} == set(get_args(holder.HolderMessage))
    assert defined_in(owner) == set(get_args(owner.OwnerMessage))
    sides = set(get_args(holder.HolderMessage)) | set(get_args(owner.OwnerMessage))
    assert defined_in(mailer) | sides == set(get_args(mailer.MailerMessage))
