"""Whom an operator has taken the access from: one small value in the store, which every replica goes by.

It says for each principal since when: a token that was issued before is not good any more, whoever verifies it. Who got
his access back stands there too, with the time below zero, so that of two states of one principal it can be told which
is the later one. Each replica reads it every few seconds, ends the sessions of whom it concerns, and writes again what
the store has lost of it: neither a store that begins anew nor one that goes on from an older state (a failover, a
backup) must give anybody his access back.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from actors.ports import Asker, Failed, Log, Refused, Shelf
from actors.protocol.rights import SKEW, owner_of, principal_id
from actors.runtime import ActorDown, MailboxFull, NotTaken
from actors.sessions.messages import EndSession
from actors.tree import GatewayActors
from gateway.config import Auth

KEY: Final = "revoked"
KEPT: Final = 400 * 86_400.0
"""Seconds for which it is remembered; longer than any token is good."""
EVERY: Final = 2.0
"""Seconds between two looks."""
MOST: Final = 100_000
"""Principals; of more the oldest are forgotten."""
LATER: Final = 0.001
"""Seconds by which a change is later than what it changes, whatever the clocks of two replicas say."""
ATTEMPTS: Final = 5
ENDS_WITHIN: Final = 2.0
WITHIN: Final = 10.0


class NotRevokedError(Exception):
    """The store did not take it."""


class Revoked:
    """Implements `Revocations`. `wall` is the wall clock, as issuers date their tokens by it."""

    def __init__(self, shelf: Shelf, actors: GatewayActors, log: Log, wall: Callable[[], float]) -> None:
        self._shelf = shelf
        self._actors = actors
        self._log = log
        self._wall = wall
        self._since: dict[str, float] = {}

    def revoked(self, asker: Asker) -> bool:
        """As in `Revocations`. A token that does not say when it was issued is taken for an old one, and so is one of
        the minute in which clocks may be apart."""
        if not self._since:
            return False
        rights = asker.rights
        names = (asker.principal.name, principal_id(rights.issuer, rights.subject))
        since = max(self._since.get(name, 0.0) for name in names)
        return since > 0.0 and (asker.issued is None or asker.issued <= since + SKEW)

    async def run(self, asked: Callable[[], bool] = lambda: True) -> None:
        """Keeps up with the other replicas, while anybody is asked who he is."""
        while True:
            if asked():
                await self._read()
            await trio.sleep(EVERY)

    async def _read(self) -> None:
        found = await self._shelf.read(KEY)
        if isinstance(found, Failed):
            return  # what is known goes on
        there = _decoded(found.value) if found is not None else {}
        since = _merged(self._since, there)
        if since != there:
            lost = len(since.items() - there.items())
            self._log.warning("revocations_lost", principals=lost, hint="they are told again")
            await self._shelf.put(KEY, _encoded(since), KEPT, instead=found.tag if found is not None else "")
        await self._know(since)

    async def _know(self, since: dict[str, float]) -> None:
        new = {name for name, when in since.items() if when > max(self._since.get(name, 0.0), 0.0)}
        self._since = _merged(self._since, since)  # an operator may have been faster than a look that was under way
        if new:
            await self._end_sessions(new)

    async def _end_sessions(self, names: set[str]) -> None:
        """All that are here; one that does not answer keeps no other one alive."""
        async with trio.open_nursery() as nursery:
            for alive in list(self._actors.sessions.table.values()):
                if any(alive.principal.name == name or alive.principal.name.startswith(f"{name}:") for name in names):
                    nursery.start_soon(self._end, alive.ref)

    async def _end(self, ref: Any) -> None:
        try:
            await ref.call(lambda reply: EndSession(reply, "revoked"), ENDS_WITHIN)
        except (MailboxFull, NotTaken, ActorDown):
            self._log.warning("session_not_ended", hint="its principal can't reach it any more")

    # What operators do

    async def revoke(self, principal: str) -> None:
        """From now on no token of this principal is good that was issued before. Raises NotRevokedError."""
        await self._change(principal, lambda now: now)

    async def restore(self, principal: str) -> None:
        """It is as if nothing had been revoked. Raises NotRevokedError."""
        await self._change(principal, lambda now: -now)

    async def _change(self, principal: str, state: Callable[[float], float]) -> None:
        for _ in range(ATTEMPTS):
            found = await self._shelf.read(KEY)
            if isinstance(found, Failed):
                break
            # A store that has just lost some of it is told of all that is known here.
            before = _merged(self._since, _decoded(found.value) if found is not None else {})
            now = max(self._wall(), abs(before.get(principal, 0.0)) + LATER)
            since = _merged(before, {principal: state(now)})
            put = await self._shelf.put(KEY, _encoded(since), KEPT, instead=found.tag if found is not None else "")
            if not isinstance(put, Failed):
                await self._know(since)
                return
            if put.reason is not Refused.FENCED:
                break
        raise NotRevokedError("the store did not take it; try again")


async def operate_principal(revoked: Revoked, what: str, principal: str, auth: Auth) -> tuple[int, dict[str, Any]]:
    """`revoke` or `restore`, as the admin listener answers it. `known`: by these rules there is such a principal; it is
    done all the same, for the token may be gone from the configuration, or come back to it."""
    try:
        with trio.fail_after(WITHIN):
            await (revoked.revoke if what == "revoke" else revoked.restore)(principal)
    except (NotRevokedError, trio.TooSlowError):
        return 503, {"error": "the store did not take it; try again"}
    return 200, {"principal": principal, "revoked": what == "revoke", "known": _known(principal, auth)}


def _known(principal: str, auth: Auth) -> bool:
    owner = owner_of(principal)
    if owner is None:
        return principal in dict(auth.tokens)
    return owner[0] in {issuer.issuer for issuer in auth.issuers}


def _merged(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The later state of each principal, whichever knows it."""
    both = ((name, max(one.get(name, 0.0), other.get(name, 0.0), key=abs)) for name in {**one, **other})
    return dict(sorted(both, key=lambda state: abs(state[1]))[-MOST:])


def _encoded(since: Mapping[str, float]) -> bytes:
    return json.dumps(since).encode()


def _decoded(value: bytes) -> dict[str, float]:
    found: dict[str, float] = json.loads(value)
    return found
