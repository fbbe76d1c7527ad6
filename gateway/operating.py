"""What operators see of sessions and do with them, by way of any replica: list them, end one, move one.

A list is read in pages, one source after the other: what each replica owns, in the order of their names, and what
nobody has in memory. Of its own sessions a replica knows all; of those of others it tells what their records say.
Clients without sessions that have connections of their own at servers of the legacy era are counted beside them. A
session is called by its handle, as in logs, or by the whole key, of which that is the beginning. Its id is a secret of
its client, and is known to nobody here.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import trio

from actors.pools.ownership import is_pool
from actors.ports import ANONYMOUS, DUE_PARTS, Answer, Done, Failed, Incarnation, Principal, Record, Replica, SessionKey
from actors.protocol.errors import ProtocolError, Refusal
from actors.runtime import ActorDown, MailboxFull, NotTaken, Reply
from actors.services import Services
from actors.sessions.expiry import ACTIVE
from actors.sessions.messages import Describe, Description, EndSession, Move, Take
from actors.sessions.router import Activate, Alive, Elsewhere, MoveSession
from actors.streams.recorder import handle
from actors.tree import GatewayActors

PAGE: Final = 100
"""Sessions in one page, if a number is not asked for."""
PAGE_MAX: Final = 500
WITHIN: Final = 10.0
"""Seconds for one page, or one act."""
SCANNED: Final = 20_000
"""Sessions of each replica that are looked through for a handle; the whole key needs no look."""

AT_REST: Final = "rest"
"""The source of those that nobody has in memory; it is read last, since it is after every incarnation."""

_HANDLE = re.compile(r"[0-9a-f]{6,32}")
_WHOLE: Final = 32
_SURE: Final = len(handle("0" * _WHOLE))
"""Digits that are one session's."""


class RefusedError(Exception):
    """It can't be done; why, as an HTTP status and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Operator:
    """Does for operators, by way of one replica, what they ask of sessions."""

    def __init__(self, actors: GatewayActors) -> None:
        self._actors = actors
        self._services: Services = actors.services

    async def ask(self, what: str, name: str, options: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """An HTTP status and a JSON object. `list` (options `cursor`, `limit`); or with a session, by its handle or
        key: `end`, `move` (option `to`), and `where` and `take`, of which a supervisor makes a move to another
        worker."""
        try:
            with trio.fail_after(WITHIN):
                if what == "list":
                    return 200, await self.page(options.get("cursor", ""), options.get("limit", ""))
                if what == "end":
                    return 200, await self.end(name)
                if what == "move":
                    return 200, await self.move(name, options.get("to", ""))
                if what == "where":
                    return 200, await self.where(name)
                if what == "take":
                    return 200, await self.take(name)
                return 404, {"error": "that can't be done with a session"}
        except RefusedError as refused:
            return refused.status, {"error": str(refused)}
        except trio.TooSlowError:
            return 503, {"error": "it took too long; the store may be away"}

    # The list

    async def page(self, cursor: str, limit: str) -> dict[str, Any]:
        """The sessions of a page, how many `modern` clients have a connection of their own besides, and the `next`
        cursor if there are more; on the first one also the replicas."""
        if limit and not (limit.isdecimal() and len(limit) < 10):
            raise RefusedError(400, "limit is a number")
        size = max(1, min(int(limit or PAGE), PAGE_MAX))
        replicas = await self._replicas()
        source, _, position = cursor.partition(":")
        sources = [*sorted(replica.incarnation for replica in replicas), AT_REST]
        page: dict[str, Any] = {}
        if not cursor:
            page["replicas"] = [self._replica(replica) for replica in replicas]
            source = sources[0]
            if source != self._me:  # it may be asked itself: a supervisor asks each worker for its own
                return {**page, "sessions": [], "next": f"{source}:"}
        if source not in sources:  # it is gone meanwhile: go on with the one that follows
            source, position = next((one for one in sources if one > source), AT_REST), ""
        modern = 0
        if source == AT_REST:
            rows, after = await self._at_rest(position)
        elif source == self._me:
            rows, after = await self._own(position, size)
            modern = 0 if position else self._actors.affinity_pools.connections
        else:
            rows, modern, after = await self._of(source, position, alive=_lives(replicas, source))
        page |= {"sessions": rows, "modern": modern}
        later = next((one for one in sources if one > source), None)
        if after or later is not None:
            page["next"] = f"{source}:{after}" if after else f"{later}:"
        return page

    @property
    def _me(self) -> Incarnation:
        return self._services.cluster.incarnation

    async def _replicas(self) -> list[Replica]:
        found: list[Replica] = await self._outcome(self._services.cluster.replicas)
        return found

    def _replica(self, replica: Replica) -> dict[str, Any]:
        known = {name: replica.info[name] for name in ("host", "pid") if name in replica.info}
        me = replica.incarnation == self._me
        return {"incarnation": replica.incarnation, "alive": replica.alive, "asked": me, **known}

    async def _own(self, position: str, size: int) -> tuple[list[dict[str, Any]], str]:
        """Those in the memory of this process after a key."""
        table = self._actors.sessions.table
        keys = sorted(key for key in table if key > position)
        rows: dict[SessionKey, dict[str, Any]] = {}

        async def describe(key: SessionKey, alive: Alive) -> None:
            try:
                description: Description = await alive.ref.call(Describe)
            except (MailboxFull, NotTaken, ActorDown):
                return
            rows[key] = self._live(key, alive, description)

        async with trio.open_nursery() as nursery:
            for key in keys[:size]:
                nursery.start_soon(describe, key, table[key])
        return [rows[key] for key in sorted(rows)], keys[size - 1] if len(keys) > size else ""

    def _live(self, key: SessionKey, alive: Alive, description: Description) -> dict[str, Any]:
        return {
            **_named(key, alive.principal.name, alive.endpoint),
            "revision": description.revision,
            "state": "live",
            "owner": self._me,
            "idle": round(description.idle, 1),
            "in_flight": description.in_flight,
            "streams": description.streams,
            "asked": description.asked,
        }

    async def _of(self, owner: Incarnation, position: str, *, alive: bool) -> tuple[list[dict[str, Any]], int, str]:
        """Those of another replica, by their records, and its pools: of a dead one there are none left."""
        cursor = int(position) if position.isdecimal() and len(position) < 20 else 0
        keys, after = await self._outcome(partial(self._services.cluster.owned, owner, cursor))
        rows, modern = [], 0
        for key, record in (await self._records(keys)).items():
            if is_pool(record):
                modern += alive and record.owner == owner
            elif record.owner == owner or (not alive and record.owner is None):
                rows.append(_recorded(key, record, alive=alive))
        return rows, modern, str(after) if after else ""

    async def _at_rest(self, position: str) -> tuple[list[dict[str, Any]], str]:
        """Those of one part that nobody has in memory, as far as the store tells: the ones that end first."""
        part = int(position) if position.isdecimal() and len(position) < 3 else 0
        keys = await self._outcome(partial(self._services.cluster.due, part, math.inf))
        records = await self._records(keys[:PAGE_MAX])
        resting = {key: record for key, record in records.items() if record.owner is None and not is_pool(record)}
        rows = [self._resting(key, record) for key, record in resting.items()]
        return rows, str(part + 1) if part + 1 < DUE_PARTS else ""

    def _resting(self, key: SessionKey, record: Record) -> dict[str, Any]:
        since = record.fields.get(ACTIVE)
        idle = None if since is None else round(max(0.0, self._services.cluster.now() - float(since)), 1)
        return {**_recorded(key, record, alive=True), "state": "at rest", "idle": idle}

    async def _records(self, keys: list[SessionKey]) -> dict[SessionKey, Record]:
        """Of those that there are."""
        found: dict[SessionKey, Record] = {}

        async def read(key: SessionKey) -> None:
            record = await self._ask(partial(self._services.store.read, key))
            if isinstance(record, Record) and ("endpoint" in record.fields or is_pool(record)):
                found[key] = record

        async with trio.open_nursery() as nursery:
            for key in dict.fromkeys(keys):
                nursery.start_soon(read, key)
        return {key: found[key] for key in sorted(found)}

    # One session

    async def end(self, name: str) -> dict[str, Any]:
        """Ends it, wherever it is, as its client would; its requests get an error."""
        key = await self._key(name)
        found = await self._find(key, *await self._whose(key))
        answer = await self._call(found, lambda reply: EndSession(reply, "operator"))
        if answer.status != 200:
            raise RefusedError(answer.status, "its end could not be recorded; try again")
        return {"key": key, "handle": handle(key), "ended": True}

    async def move(self, name: str, to: Incarnation) -> dict[str, Any]:
        """Has a session given back by the replica that has it, with what is in flight, and taken over by that one. If
        none is named, this one takes over one of another replica, and leaves one of its own to any other."""
        key = await self._key(name)
        owner = (await self.where(key))["owner"]
        if owner is None:
            raise RefusedError(409, "it is at rest: nobody has it in memory")
        if to == owner:
            raise RefusedError(409, "it is there already")
        living = {replica.incarnation for replica in await self._replicas() if replica.alive}
        if to not in {"", *living}:
            raise RefusedError(409, "there is no such replica")
        whose = await self._whose(key)
        if owner != self._me:
            _expect_moved(await self._call(await self._find(key, *whose), Move))
            to = to or self._me
        elif living > {self._me}:
            _expect_moved(await self._call(self._actors.router, lambda reply: MoveSession(key, reply)))
        else:
            raise RefusedError(409, "there is no other replica")
        moved = {"key": key, "handle": handle(key), "moved": True, "from": owner}
        if to == self._me:
            moved |= await self.take(key)
        elif to:
            moved |= await self._given_to(to, key, whose)
        return moved

    async def _given_to(self, to: Incarnation, key: SessionKey, whose: tuple[Principal, str]) -> dict[str, Any]:
        """Has another replica take over what was given back."""
        self._actors.sessions.know(key, to)
        _expect_moved(await self._call(await self._find(key, *whose), Take))
        owner = (await self.where(key))["owner"]
        if owner != to:  # one that holds a connection of it may be faster
            raise RefusedError(409, f"another replica has it now: {owner}")
        return {"to": to}

    async def where(self, name: str) -> dict[str, Any]:
        """Who owns it; None: nobody, it is at rest."""
        key = await self._key(name)
        alive = self._actors.sessions.table.get(key)
        if alive is not None and alive.ref.alive:
            return {"key": key, "owner": self._me}
        return {"key": key, "owner": (await self._record(key)).owner}

    async def take(self, name: str) -> dict[str, Any]:
        """Brings it into the memory of this replica, if no other one has it."""
        key = await self._key(name)
        whose = await self._whose(key)
        found = await self._call(self._actors.router, lambda reply: Activate(key, *whose, reply))
        if isinstance(found, ProtocolError):
            raise RefusedError(found.status, found.message)
        if isinstance(found, Elsewhere):
            raise RefusedError(409, "another replica has it")
        return {"key": key, "handle": handle(key), "moved": True, "to": self._me}

    async def _find(self, key: SessionKey, principal: Principal, endpoint: str) -> Any:
        """Where messages to it go, here or elsewhere."""
        found = await self._actors.gate.find(key, principal, endpoint)
        if isinstance(found, ProtocolError):
            raise RefusedError(found.status, found.message)
        return found

    async def _call(self, actor: Any, make: Callable[[Reply], object]) -> Any:
        try:
            return await actor.call(make, self._services.limits.admission)
        except Refusal as refusal:
            raise RefusedError(refusal.error.status, refusal.error.message) from refusal
        except (MailboxFull, NotTaken, ActorDown) as error:
            raise RefusedError(503, "the session takes no message at the moment; try again") from error

    async def _whose(self, key: SessionKey) -> tuple[Principal, str]:
        alive = self._actors.sessions.table.get(key)
        if alive is not None:
            return alive.principal, alive.endpoint
        record = await self._record(key)
        name = record.fields.get("principal", b"").decode()
        principal = ANONYMOUS if name == ANONYMOUS.name else Principal(name)
        return principal, record.fields["endpoint"].decode()

    async def _record(self, key: SessionKey) -> Record:
        record = await self._ask(partial(self._services.store.read, key))
        if not isinstance(record, Record) or "endpoint" not in record.fields:
            raise RefusedError(404, "there is no such session")
        return record

    async def _key(self, name: str) -> SessionKey:
        """The key that is meant. A handle is looked for in this process, and then among all that is owned; what is
        shorter always among all: it may be the beginning of several."""
        if not _HANDLE.fullmatch(name):
            raise RefusedError(400, "a session is named by 6 to 32 hexadecimal digits")
        if len(name) == _WHOLE:
            return name
        found = {key for key in self._actors.sessions.table if key.startswith(name)}
        if not found or len(name) < _SURE:
            for replica in await self._replicas():
                found |= await self._owned(replica.incarnation, name)
            for part in range(DUE_PARTS):
                keys = await self._outcome(partial(self._services.cluster.due, part, math.inf))
                found |= {key for key in keys if key.startswith(name)}
        if not found:
            raise RefusedError(404, "there is no such session")
        if len(found) > 1:
            raise RefusedError(409, "several sessions begin so: give more of it")
        return found.pop()

    async def _owned(self, owner: Incarnation, name: str) -> set[SessionKey]:
        found: set[SessionKey] = set()
        cursor, seen = 0, 0
        while seen < SCANNED:
            keys, cursor = await self._outcome(partial(self._services.cluster.owned, owner, cursor))
            found.update(key for key in keys if key.startswith(name))
            seen += len(keys)
            if not cursor:
                break
        return found

    # The store

    async def _ask(self, ask: Callable[[Done], object]) -> Any:
        """What the store calls back with."""
        answered, outcome = trio.Event(), []

        def done(value: Any) -> None:
            outcome.append(value)
            answered.set()

        ask(done)
        await answered.wait()
        return outcome[0]

    async def _outcome(self, ask: Callable[[Done], object]) -> Any:
        """The same; what fails is refused."""
        outcome = await self._ask(ask)
        if isinstance(outcome, Failed):
            raise RefusedError(503, f"the store does not answer ({outcome.reason.value})")
        return outcome


def _expect_moved(outcome: Any) -> None:
    if outcome is True or (isinstance(outcome, Answer) and outcome.status == 200):
        return
    status = outcome.status if isinstance(outcome, Answer) else 409
    raise RefusedError(status, "it can't be given back at the moment; try again")


def _named(key: SessionKey, principal: str, endpoint: str) -> dict[str, Any]:
    return {"key": key, "handle": handle(key), "principal": principal, "endpoint": endpoint, "era": "legacy"}


def _recorded(key: SessionKey, record: Record, *, alive: bool) -> dict[str, Any]:
    fields = record.fields
    return {
        **_named(key, fields.get("principal", b"").decode(), fields["endpoint"].decode()),
        "revision": fields.get("version", b"").decode(),
        "state": "live" if alive else "orphaned",
        "owner": record.owner,
        "idle": None,
        "in_flight": len(record.requests),
        "streams": None,
        "asked": len(record.asked),
    }


def _lives(replicas: list[Replica], incarnation: Incarnation) -> bool:
    return any(replica.alive for replica in replicas if replica.incarnation == incarnation)
