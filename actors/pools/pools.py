"""How a modern client comes to the pool of its connections to a legacy server, from this process or another one."""

import hashlib

from actors.cluster.letters import FromPool, Letter, ToPool
from actors.cluster.letters import encode as encode_letter
from actors.endpoints.host import Tree
from actors.pools import letters
from actors.pools import messages as pm
from actors.pools.guest import Guest
from actors.pools.mail import Link
from actors.pools.pool import PoolActor, PoolKey
from actors.ports import Incarnation, SessionKey, ignore
from actors.protocol import capabilities
from actors.protocol.table import BackendSpec
from actors.quotas import QuotaSupervisor, SuspendedCalls
from actors.runtime import AtCapacity, DynamicSupervisor, Ref, Registry, SystemClosed
from actors.services import Services


class Pools:
    """All of this process; each is made when it is first needed, and ends by itself."""

    def __init__(
        self, services: Services, registry: Registry, supervisor: QuotaSupervisor, tree: Tree, guests: DynamicSupervisor
    ) -> None:
        """`guests` supervises what stands in for clients in other processes."""
        self.suspended = SuspendedCalls(services.limits.parked_per_principal, services.telemetry)
        self._services = services
        self._registry = registry
        self._supervisor = supervisor
        self._tree = tree
        self._connected: dict[str, bool] = {}
        """The record keys of those that have a connection, and whether it is one of this process."""
        self._supervisor_of_guests = guests
        self.guests: dict[tuple[SessionKey, Incarnation, int], Ref] = {}
        """By pool, and the process and the number of the link."""

    def connected(self, spec: BackendSpec, key: PoolKey) -> bool:
        """Whether the pool of this client for this server is there, and has a connection."""
        return bool(self._connected) and record_key(spec.name, key) in self._connected

    @property
    def connections(self) -> int:
        """How many have a connection of this process."""
        return sum(self._connected.values())

    def find(self, spec: BackendSpec, key: PoolKey) -> Ref:
        """The pool of this client for this server. Raises AtCapacity, SystemClosed."""
        record = record_key(spec.name, key)
        name = f"broker-{record}"
        running = self._registry.whereis(name)
        if running is not None and running.alive:
            return running
        pool = PoolActor(spec, record, key, self._services, self._tree, self.suspended, self._connected)
        return self._supervisor.start_for(key.principal, pool, name, key.affinity)

    # Mail

    def take(self, letter: Letter) -> None:
        """A letter of a link: for the pool that is used here, or for who uses one of this process."""
        (sender, link), body = letter.reply, letter.body
        assert isinstance(body, ToPool | FromPool)
        came = pm.MailCame(sender, link, body.number, body.seen, body.said)
        if isinstance(body, FromPool):
            pool = self._registry.whereis(f"broker-{letter.key}")
            if pool is not None:
                pool.reply(came)
            return
        guest = self.guests.get((letter.key, sender, link))
        if guest is not None:
            guest.reply(came)
        else:
            refusal = self._admit(letter, body) if body.number == 1 else letters.GONE
            if refusal is not None:
                self._refuse(letter, refusal)

    def process_down(self, incarnation: Incarnation) -> None:
        """Another process is gone for good, or this one has another name now."""
        down = pm.ProcessDown(incarnation)
        for ref in (*self._supervisor.children(), *self.guests.values()):
            ref.reply(down)

    def _admit(self, letter: Letter, body: ToPool) -> str | None:
        """Somebody in another process comes to a pool, which is made if there is none; why not, if so."""
        try:
            enter = letters.to_owner(body.said)[0]
        except (letters.UnreadableError, IndexError):
            return letters.REFUSED
        spec = self._services.table.value.backends.get(enter.backend) if isinstance(enter, letters.Enter) else None
        if spec is None or not isinstance(enter, letters.Enter):
            return letters.REFUSED
        key = PoolKey(letter.principal, frozenset(enter.bits), enter.affinity)
        if record_key(spec.name, key) != letter.key:
            return letters.REFUSED
        (sender, number), place = letter.reply, (letter.key, *letter.reply)
        link = Link(letter.key, letter.principal, self._services.cluster.incarnation, sender, number)
        try:
            guest = Guest(self.find(spec, key), link, self._services, lambda: self.guests.pop(place, None))
            self.guests[place] = self._supervisor_of_guests.start_child(guest)
        except (AtCapacity, SystemClosed):
            return letters.GONE
        return None

    def _refuse(self, letter: Letter, reason: str) -> None:
        """There is no such link."""
        cluster, said = self._services.cluster, letters.encode([letters.Ended(reason)])
        reply = (cluster.incarnation, letter.reply[1])
        answer = Letter(letter.key, reply, FromPool(0, 0, said), letter.principal, "")
        cluster.post(letter.reply[0], encode_letter(answer), ignore)


def record_key(backend: str, key: PoolKey) -> str:
    """Of the record of a pool: one for each client, as far as clients can be told from each other, and server."""
    principal = key.principal
    parts = (principal.name, str(principal.anonymous), key.affinity, capabilities.bits_key(key.bits), backend)
    digest = hashlib.sha256(b"broker")
    for part in parts:
        data = part.encode()
        digest.update(b"\0%d\0" % len(data) + data)
    return digest.hexdigest()[:32]
