"""The supervision tree of the gateway (ARCHITECTURE.md, "Supervision tree"): what starts first drains last."""

from collections.abc import Callable
from dataclasses import replace

import trio

from actors.cluster.channels import Channels
from actors.cluster.holder import DrainStarted
from actors.cluster.letters import Letter
from actors.cluster.mailer import Mailer, Postman
from actors.cluster.sweeper import Deaths, Sweeper
from actors.doubt import Doubt
from actors.endpoints.catalogue import Catalogue, Prestart, PrincipalsAccount
from actors.endpoints.connecting import AccountChanged
from actors.endpoints.host import Memo, Tree
from actors.endpoints.last_known import LastKnown
from actors.endpoints.merged import passed_on
from actors.gate import Gate, ModernActors
from actors.modern.endpoint import UpstreamResolver
from actors.modern.requests import Kind, ModernRequests
from actors.named import NamedRef
from actors.pools.pool import PoolKey
from actors.pools.pools import Pools
from actors.ports import Door
from actors.protocol import capabilities
from actors.protocol.policy import shown_otherwise
from actors.protocol.table import Limits, Replaced, Table, replaced, touched
from actors.quotas import Quotas, QuotaSupervisor
from actors.runtime import Child, DynamicSupervisor, Ref, Supervisor, System
from actors.services import Services
from actors.sessions.expiry import Expiry
from actors.sessions.router import Router, Sessions
from actors.sessions.verifier import LeaseListener, Verifier
from actors.upstreams.backends import Backends
from actors.watched import WatchedDoor

UPSTREAMS_PER_SESSION = 4
"""Room in the supervisor of upstream connections: more sessions than a quarter of it never have upstream
connections of their own at once."""


class GatewayActors:
    """The running tree: the door for edges, and what operators look at."""

    def __init__(
        self,
        system: System,
        services: Services,
        overloaded: Callable[[], bool] = lambda: False,
        *,
        prestart: bool = False,
    ) -> None:
        """`prestart`: connect to servers of aggregates of which nothing is known, before anybody asks."""
        self.sessions = Sessions()
        self.services = services
        upstreams = DynamicSupervisor(services.limits.sessions * UPSTREAMS_PER_SESSION)
        self.backends = Backends(services, {}, upstreams.children)
        supervisor = DynamicSupervisor(services.limits.sessions + 1)
        expiry = NamedRef(system, "expiry")
        known = LastKnown(services.lists, services.table)
        self.doubt = Doubt(services.cluster, services.limits)
        core = NamedRef(system, "backends"), NamedRef(system, "catalogue")
        tree = Tree(upstreams, *core, expiry, {}, Memo(), self.doubt, known)
        tree = replace(tree, status=self.backends.status)
        self.tree = tree
        self.quotas = Quotas(services.limits)
        system.spawn(
            Supervisor(
                [
                    Child("backends", self._new_backends),
                    Child("catalogue", lambda: Catalogue(services, upstreams, tree)),
                ]
            ),
            "core",
        )
        self.channels = Channels(services)
        self.router, mailer = NamedRef(system, "router"), NamedRef(system, "mailer")

        def mailer_of() -> Mailer:
            return Mailer(
                services,
                self.sessions,
                self.router,
                lambda: self.affinity_pools,
                self.channels,
                self._came,
            )

        post = Child("mailer", mailer_of)
        system.spawn(Supervisor([post]), "mail")
        system.spawn(upstreams, "upstreams")
        system.spawn(supervisor, "sessions")
        self.modern = self._modern_actors(system)
        router = Child("router", lambda: Router(services, self.sessions, supervisor, tree, self.quotas))
        ends = Child("expiry", lambda: Expiry(services, upstreams))
        verifier = Child("verifier", lambda: Verifier(self.doubt, self._owners, looks=services.store.durable))
        sweeper = Child("sweeper", lambda: Sweeper(services, self.router, expiry))
        system.spawn(Supervisor([router, ends, verifier, sweeper]), "ingress")
        services.cluster.subscribe(Postman(mailer, services.cluster))
        self.sessions.on_drain.append(lambda: mailer.reply(DrainStarted()))
        services.cluster.subscribe(LeaseListener(NamedRef(system, "verifier"), self.doubt, trio.current_time))
        services.cluster.subscribe(Deaths(NamedRef(system, "sweeper")))
        self.gate = Gate(services, self.sessions, self.router, mailer, self.modern, overloaded)
        self.door: Door = self.gate
        if services.observer is not None:
            self.door = WatchedDoor(self.gate, services.observer, services.shown, services.telemetry, services.audit)
        self.prestart = prestart
        if prestart:
            tree.catalogue.reply(Prestart())

    def _came(self, letter: Letter) -> None:
        """Somebody has come to another replica."""
        self.modern.came(letter)

    def _owners(self) -> list[Ref]:
        """All that own a record."""
        return [*(alive.ref for alive in self.sessions.table.values()), *self.pools.children()]

    def _modern_actors(self, system: System) -> ModernActors:
        """What serves modern clients: spawned after the upstream connections, which it uses, it ends before them."""
        services, tree, registry = self.services, self.tree, system.registry
        self.pools, self.modern_requests = QuotaSupervisor(services.limits), QuotaSupervisor(services.limits)
        system.spawn(self.pools, "pools")
        system.spawn(self.modern_requests, "requests")
        pools = Pools(services, registry, self.pools, tree, self.modern_requests)
        self.affinity_pools = pools

        def make(kind: Kind) -> ModernRequests:
            bits = passed_on(kind.bits) if not kind.one_server else capabilities.carried(kind.bits)
            resolver = UpstreamResolver(PoolKey(kind.principal, bits, kind.affinity), services, tree, pools, registry)
            return ModernRequests(kind, services, tree, self.quotas, resolver)

        return ModernActors(services, registry, self.modern_requests, make, (self.pools,))

    def replace_limits(self, limits: Limits) -> None:
        """Other bounds count from now on. What was begun under those of before, such as a session, keeps some of
        them."""
        self.services.limits = limits
        for bound in (self.quotas, self.pools, self.modern_requests):
            bound.bound_by(limits)

    def account_changed(self, principal: str, backend: str) -> None:
        """This principal's account at this server is another one, or is no more: what he sees of it may be too."""
        self.tree.catalogue.reply(PrincipalsAccount(principal, backend))
        for alive in self.sessions.table.values():
            if alive.principal.name == principal:
                alive.ref.reply(AccountChanged(backend))
        for served in self.modern_requests.children():
            served.reply(PrincipalsAccount(principal, backend))

    def replace_table(self, table: Table) -> None:
        """Another configuration counts from now on. Connections to servers that are not in it end, and what is in
        flight on them gets an error; those to servers that are others now stay with who has them for a while; sessions
        that list other things are told so."""
        cell = self.services.table
        before, cell.value = cell.value, table
        message = Replaced(before)
        for actor in (self.tree.backends, self.tree.catalogue):
            actor.reply(message)
        for upstream in self.tree.upstreams.children():
            upstream.reply(message)
        for served in (*self.pools.children(), *self.modern_requests.children()):
            served.reply(message)
        ruled = shown_otherwise(before.policy, table.policy)
        others = {name for name in before.endpoints if ruled or touched(before, table, name)}
        for alive in self.sessions.table.values():
            if alive.endpoint in others:
                alive.ref.reply(message)
        if self.prestart and not table.backends.keys() <= before.backends.keys() - replaced(before, table):
            self.tree.catalogue.reply(Prestart())
        gone = sorted(before.backends.keys() - table.backends.keys())
        self.services.log.info("table_replaced", digest=table.digest, gone=gone, touched=sorted(others))

    def _new_backends(self) -> Backends:
        self.backends = Backends(self.services, self.backends.status, self.tree.upstreams.children)
        return self.backends
