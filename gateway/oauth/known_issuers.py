"""The issuers that the operator has named: nobody is sent to their sign-in for the tokens of another one."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import trio

from gateway.oauth import metadata
from gateway.oauth.discovery import WITHIN, Discovery
from gateway.oauth.errors import AwayError, OAuthError, shown
from gateway.oauth.metadata import AuthorizationServer

KNOWN: Final = 300.0
"""Seconds for which it is known where the users of an issuer sign in."""


@dataclass(frozen=True, slots=True)
class NamedIssuer:
    """One of them, by its name, by where its metadata is, or both; `inside`: see `UpstreamAuth`."""

    issuer: str | None
    metadata_url: str | None = None
    inside: tuple[str, ...] = ()


class KnownIssuers:
    """Guards the sign-ins of the issuers that the operator has named by now."""

    def __init__(self, named: Callable[[], Collection[NamedIssuer]], discovery: Discovery) -> None:
        self._named = named
        self._discovery = discovery
        self._found: dict[NamedIssuer, tuple[float, AuthorizationServer | None]] = {}
        """Until when which metadata is known; None: it has none that could be read."""

    async def check(self, server: AuthorizationServer) -> None:
        """Raises OAuthError where users of this authorization server would sign in at the place of a named one: where
        that is itself, or where its metadata says."""
        if metadata.origin(metadata.for_users(server)) == metadata.origin(server.issuer):
            return  # as with nearly all: nobody has to be asked
        others = [one for one in self._named() if one.issuer != server.issuer]
        metadata.check_place(server, [one.issuer for one in others if one.issuer is not None])
        with trio.move_on_after(WITHIN):
            async with trio.open_nursery() as nursery:
                for one in others:
                    nursery.start_soon(self._look, one)
        for one in others:
            if one not in self._found:
                raise AwayError("issuer_away", f"{_name(one)} can't be asked where its users sign in")
            found = self._found[one][1]
            if found is not None and found.issuer != server.issuer:
                where = found.authorization_endpoint
                metadata.check_place(server, (found.issuer, *((where,) if where is not None else ())))

    async def _look(self, one: NamedIssuer) -> None:
        """What was known of one that is away stays known."""
        now, found = trio.current_time(), None
        if one in self._found and now < self._found[one][0]:
            return
        try:
            found = await self._discovery.server(one.issuer, *one.inside, metadata_url=one.metadata_url)
        except AwayError:
            return
        except OAuthError:
            found = None  # its keys are all that it is known by
        self._found[one] = now + KNOWN, found


def _name(one: NamedIssuer) -> str:
    return shown(one.issuer or one.metadata_url)
