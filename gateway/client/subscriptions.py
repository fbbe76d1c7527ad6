"""Resources whose changes somebody wants to hear of: by `resources/subscribe`, or by `subscriptions/listen`."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self

import trio

from actors.machines.upstream import breaker
from actors.protocol.meta import SUBSCRIPTION_KEY
from actors.protocol.methods import ACKNOWLEDGED, UPDATED
from gateway.client.errors import ClientError, ConnectionLostError, McpError
from gateway.client.values import Update, mapping, typed
from gateway.client.waiting import Room

PENDING: Final = 1024
"""Resources that have changed and were not taken yet; of further ones the oldest is dropped."""
LISTENS: Final = 10
"""Attempts in a row to go on with a subscription that come to nothing; with the back-off some minutes."""


class Asking(Protocol):
    """What is needed of a client; `ending`: nothing more is begun."""

    ending: bool

    @property
    def stateless(self) -> bool:
        """Whether subscriptions are requests that last."""

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]: ...

    async def listen(self, params: Mapping[str, Any], sent: Callable[[int], object]) -> None:
        """Until the server ends it, or it breaks."""


class Watch:
    """One subscription of a client."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.scope = trio.CancelScope()
        self.begun = trio.Event()
        self.failure: ClientError | None = None
        self._changed: dict[str, tuple[Update, int]] = {}
        self._room = Room(PENDING)
        self._wake = trio.Event()

    def note(self, params: Mapping[str, Any], size: int = 0) -> None:
        """Something has changed, by a message of this size. What has changed before keeps its place: else of several
        that change all the time the same would always be the oldest."""
        update = typed(Update, dict(params))
        known = self._changed.get(update.uri)
        if known is not None:
            self._room.give(known[1])
            if not self._room.fits(size):
                del self._changed[update.uri]
        while not self._room.fits(size):
            self._take(next(iter(self._changed)))
        self._changed[update.uri] = update, size
        self._room.take(size)
        self._wake.set()

    def _take(self, uri: str) -> Update:
        update, size = self._changed.pop(uri)
        self._room.give(size)
        return update

    def fail(self, failure: ClientError) -> None:
        """Ends it with this error: nothing more comes."""
        self.failure = self.failure or failure
        self.begun.set()
        self._wake.set()

    async def next(self) -> Update:
        """The oldest change that was not taken yet."""
        while not self._changed:
            if self.failure is not None:
                raise (
                    type(self.failure)(*self.failure.args)
                    if isinstance(self.failure, ConnectionLostError)
                    else self.failure
                )
            self._wake = trio.Event()
            await self._wake.wait()
        await trio.lowlevel.checkpoint()
        return self._take(next(iter(self._changed)))


class Watching:
    """All subscriptions of a client."""

    def __init__(self, client: Asking, nursery: trio.Nursery) -> None:
        self._client = client
        self._nursery = nursery
        self._watches: list[Watch] = []
        self._lasting: set[Watch] = set()
        """Those that are requests; some of them are between two attempts."""
        self._listens: dict[int, Watch] = {}
        """The same by the request that is under way."""
        self._token = trio.lowlevel.current_trio_token()
        self._changing = trio.Lock()

    async def begin(self, uri: str) -> Watch:
        """Subscribes. What the server refuses it with, if it does."""
        watch = Watch(uri)
        if self._client.stateless:
            self._nursery.start_soon(self._listen, watch)
            try:
                await watch.begun.wait()
            except trio.Cancelled:
                watch.scope.cancel()
                raise
            if watch.failure is not None:
                raise watch.failure
        else:
            async with self._changing:
                known = any(other.uri == uri for other in self._watches)
                self._watches.append(watch)  # before it is answered: what follows the answer may come with it
                try:
                    if not known:
                        await self._client.request("resources/subscribe", {"uri": uri})
                except trio.Cancelled:
                    self._end_soon(watch)  # the server may have made it
                    raise
                except ClientError:
                    self._drop(watch)
                    raise
        return watch

    async def end(self, watch: Watch) -> None:
        """Unsubscribes, if nobody else wants to hear of the same."""
        try:
            await self._end(watch)
        except trio.Cancelled:
            self._end_soon(watch)
            raise

    async def _end(self, watch: Watch) -> None:
        watch.scope.cancel()
        try:
            async with self._changing:
                others = [other for other in self._watches if other is not watch]
                alone = watch in self._watches and all(other.uri != watch.uri for other in others)
                if alone and watch.failure is None:
                    await self._client.request("resources/unsubscribe", {"uri": watch.uri})
                self._drop(watch)
        except ClientError:
            self._drop(watch)
            raise

    def abandon(self, watch: Watch) -> None:
        """Ends a subscription that nobody has any more; from any thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._end_soon, watch)

    def told(self, method: str, params: Mapping[str, Any], size: int) -> None:
        """A notification of the server, in a message of this size."""
        of = mapping(params.get("_meta")).get(SUBSCRIPTION_KEY)
        listened = self._listens.get(of) if type(of) is int else None
        if method == ACKNOWLEDGED and listened is not None:
            honoured = mapping(params.get("notifications")).get("resourceSubscriptions")
            if not isinstance(honoured, list) or listened.uri not in honoured:
                listened.fail(ClientError("the server offers no subscription to this resource", executed="no"))
            elif listened.begun.is_set():
                listened.note({"uri": listened.uri})  # what was missed meanwhile nobody knows
            listened.begun.set()
        elif method == UPDATED and isinstance(params.get("uri"), str):
            for watch in [listened] if listened is not None else self._meant(params["uri"]):
                watch.note(params, size)

    def fail(self, failure: ClientError) -> None:
        """Ends all with this error: nothing more comes."""
        for watch in (*self._watches, *self._lasting):
            watch.fail(failure)

    async def renew(self) -> None:
        """Subscribes anew, in a new session; what was missed meanwhile nobody knows. What is refused there ends."""
        for uri in dict.fromkeys(watch.uri for watch in self._watches):
            try:
                await self._client.request("resources/subscribe", {"uri": uri})
            except McpError as refused:
                for watch in [watch for watch in self._watches if watch.uri == uri]:
                    watch.fail(refused)
                    self._drop(watch)
        for watch in self._watches:
            watch.note({"uri": watch.uri})

    def _meant(self, uri: str) -> list[Watch]:
        """Those of this resource; of one inside of what is subscribed to, where there is none."""
        exact = [watch for watch in self._watches if watch.uri == uri]
        return exact or [watch for watch in self._watches if uri.startswith(watch.uri)]

    def _end_soon(self, watch: Watch) -> None:
        if not self._client.ending and (watch in self._watches or watch in self._lasting):
            self._nursery.start_soon(self._end_quietly, watch)

    def _drop(self, watch: Watch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    async def _end_quietly(self, watch: Watch) -> None:
        with suppress(ClientError):  # nobody listens any more
            await self._end(watch)  # once: when this is cancelled, so is what it would be done by again

    async def _listen(self, watch: Watch) -> None:
        """Listens until it is ended; again, after a while, whenever that breaks."""
        self._lasting.add(watch)
        try:
            with watch.scope:
                await self._listen_on(watch)
        finally:
            self._lasting.discard(watch)

    async def _listen_on(self, watch: Watch) -> None:
        failures, ids = 0, list[int]()

        def sent(id: int) -> None:
            self._listens[id] = watch
            ids.append(id)

        while watch.failure is None:
            began = trio.current_time()
            try:
                await self._client.listen({"notifications": {"resourceSubscriptions": [watch.uri]}}, sent)
            except (ConnectionLostError, McpError) as error:
                watch.fail(error)
            except ClientError as error:
                if not watch.begun.is_set() or failures >= LISTENS:
                    watch.fail(error)
            finally:
                while ids:  # none if there is no connection any more
                    del self._listens[ids.pop()]
            failures = 0 if trio.current_time() - began > 10 else failures + 1
            await trio.sleep(breaker.delay(failures, random.random()))  # noqa: S311, it only spreads load


class Subscription:
    """The changes of one resource, as an async iterator. One that nobody has any more ends by itself."""

    def __init__(self, watching: Watching, uri: str) -> None:
        self._watching = watching
        self._uri = uri
        self._watch: Watch | None = None

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        return await (await self._begin()).next()

    async def aclose(self) -> None:
        """Ends the subscription."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await self._watching.end(watch)

    def __del__(self) -> None:
        if self._watch is not None:
            self._watching.abandon(self._watch)

    async def _begin(self) -> Watch:
        if self._watch is None:
            self._watch = await self._watching.begin(self._uri)
        return self._watch
