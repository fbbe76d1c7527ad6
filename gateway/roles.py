"""What a gateway is among processes: the only one, with sockets and an admin listener of its own, or one of several
workers (`gateway.working`). The rest of it is the same in each role."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from socket import socket
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from actors.runtime import System
from gateway import descriptors
from gateway.admin.app import Readiness, admin_app
from gateway.config import Settings
from gateway.config.settings import Address
from gateway.gauges import sample
from gateway.http.config import ServeConfig
from gateway.http.serve import serve
from gateway.http.sockets import (
    CannotListenError,
    Name,
    addresses,
    close_listeners,
    listeners_for,
    names,
    remove_names,
    unix_listeners_for,
)
from gateway.observability.scraping import Scraping
from gateway.running import recorded

if TYPE_CHECKING:
    from gateway.app import Gateway


STARTING: Final = (503, {"error": "the gateway is starting; try again"})
"""What operators are answered until there is something that they could operate."""


class Role(Protocol):
    """What the life of a gateway differs in from role to role. Each member is used once, in this order."""

    reloadable: bool
    """Whether the process itself is told by a signal to read its configuration anew."""

    def listeners(self) -> list[socket]:
        """The sockets on which clients come. Raises CannotListenError."""

    async def begin(self, gateway: "Gateway", over: trio.Event) -> None:
        """Shows operators that the process starts, until that is over: it may wait for its store."""

    def leave(self) -> None:
        """Called when the drain begins: nobody new is to find those sockets."""

    async def attend(self, gateway: "Gateway", system: System) -> None:
        """Shows operators how the gateway is, from now on until it is drained."""


@asynccontextmanager
async def beginning(gateway: "Gateway") -> AsyncIterator[trio.Event]:
    """Operators see that the process starts, until the event is set."""
    over = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.role.begin, gateway, over)
        try:
            yield over
        finally:
            nursery.cancel_scope.cancel()


async def reload_on_demand(gateway: "Gateway") -> None:
    """Reads the configuration anew when that is asked for, or, if it is to be watched, is another one; until it is
    cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.reloads.run)
        if gateway.settings.watch:
            nursery.start_soon(gateway.reloads.watch)


class Single:
    """The only process: it opens its sockets itself. `announce` gets the settings with the addresses that are really
    listened on, as soon as they are."""

    reloadable = True

    def __init__(self, settings: Settings, announce: Callable[[Settings], None]) -> None:
        self._settings = settings
        self._announce = announce
        self._public: list[socket] = []
        self._admin: list[socket] = []
        self._names: list[Name] = []

    def listeners(self) -> list[socket]:
        self._public, self._admin = listeners_of(self._settings)
        self._names = names(self._public)
        return self._public

    async def begin(self, gateway: "Gateway", over: trio.Event) -> None:
        listen = {"listen": str(bound(self._settings.listen, self._public)), "servers": []}
        readiness = Readiness(ready=False, details={"store": "opening"})
        app = admin_app(
            lambda: readiness,
            Scraping(gateway.metrics).page,
            self._settings.auth.hosts,
            servers=lambda: listen,
            sessions=_operate_later,
            config=lambda told: STARTING,
        )
        config = ServeConfig(stop=1.0, connections=descriptors.ADMIN_CONNECTIONS)
        listeners = [listener.dup() for listener in self._admin]  # those themselves are served later
        await serve(app, listeners, config, stop=over, log=gateway.log)

    def leave(self) -> None:
        remove_names(self._names)

    async def attend(self, gateway: "Gateway", system: System) -> None:
        listen, admin = bound(self._settings.listen, self._public), bound(self._settings.admin, self._admin)
        self._announce(replace(self._settings, listen=listen, admin=admin))
        gateway.log.info("serving", listen=str(listen), admin=str(admin))

        scraping = Scraping(gateway.metrics)

        async def page(accept: str) -> tuple[bytes, str]:
            sample(gateway, system)
            return await scraping.page(accept)

        hosts = self._settings.auth.hosts
        app = admin_app(
            gateway.readiness,
            page,
            hosts,
            servers=gateway.servers,
            sessions=gateway.operate,
            config=gateway.reloads.compare,
        )
        config = ServeConfig(stop=1.0, connections=descriptors.ADMIN_CONNECTIONS)
        with recorded(listen.path or listen.port, f"http://{admin.url_host}:{admin.port}", gateway.log):
            await serve(app, self._admin, config, stop=gateway.drained, log=gateway.log, connections=gateway.admin)


async def _operate_later(what: str, name: str, options: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
    return STARTING


class Alone:
    """The only process, with nothing for operators."""

    reloadable = False

    def __init__(self, settings: Settings, announce: Callable[[Settings], None]) -> None:
        self._settings = settings
        self._announce = announce
        self._public: list[socket] = []

    def listeners(self) -> list[socket]:
        listen = self._settings.listen
        self._public = listeners_for("public", "http", listen.host, listen.port, in_file=False)
        return self._public

    async def begin(self, gateway: "Gateway", over: trio.Event) -> None:
        """Nobody asks."""

    def leave(self) -> None:
        """Nobody finds it but by its address."""

    async def attend(self, gateway: "Gateway", system: System) -> None:
        self._announce(replace(self._settings, listen=bound(self._settings.listen, self._public)))
        await gateway.drained.wait()


def listeners_of(settings: Settings) -> tuple[list[socket], list[socket]]:
    """The sockets of both listeners, public and admin. Raises CannotListenError."""
    listen = settings.listen
    if listen.path:
        public = unix_listeners_for("public", "listen", listen.path)
    else:
        public = listeners_for("public", "listen", listen.host, listen.port)
    made = names(public)
    try:
        return public, listeners_for("admin", "admin", settings.admin.host, settings.admin.port)
    except CannotListenError:
        remove_names(made)
        close_listeners(public)
        raise


def bound(address: Address, listeners: list[socket]) -> Address:
    """The address with the port that it got."""
    return address if address.path else replace(address, port=addresses(listeners)[0][1])
