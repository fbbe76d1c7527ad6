"""One client's session with a server: frames in, frames out, and a task for each request.

Guarantees: a request is answered once, or not at all if the client cancelled it; a handler that crashes fails its own
request and nothing else; nothing is queued without bound, a request too many is refused.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVarTuple, cast

import trio
from msgspec import Raw

from actors.protocol import codec, errors, meta, payload
from actors.protocol.messages import EMPTY, Error, Notification, Request, RequestId, Result
from actors.protocol.methods import LIST_KINDS, ListKind
from actors.protocol.rights import NO_RIGHTS, Rights
from actors.protocol.versions import can_use
from actors.runtime.boundary import boundary, thread_boundary
from actors.runtime.exits import Exit
from gateway.native import failures, methods
from gateway.native.asking import Asking
from gateway.native.background import Background
from gateway.native.content import to_json
from gateway.native.context import Client, Context, Level
from gateway.native.errors import ClientTimeoutError, TooLargeError, UrlElicitation, UrlRequiredError
from gateway.native.providers import scheme_of
from gateway.native.stepping import Stepped

if TYPE_CHECKING:
    from gateway.native.server import Server

Ts = TypeVarTuple("Ts")

INBOX: Final = 1024
"""Frames that may wait to be read: more than a client that keeps to its own bounds ever has under way."""

VISITS: Final = 1000
"""Pages that one session was sent to and that may still be reported as visited; the oldest is forgotten first."""

LEAVING: Final = 5.0
"""Seconds that providers have, when a session ends, to hear of its subscriptions."""

Crash: TypeAlias = Callable[[str, BaseException], None]
"""Told of a crash in a handler: the method, and what was raised. It must not raise."""


Blocked: TypeAlias = Callable[[str, str, float], None]
"""Told that a handler kept the event loop to itself: the method, the tool or prompt ("" for others), and for how many
seconds. It must not raise."""


class Phase(Enum):
    """The life of a session (2025-11-25, lifecycle), never backwards."""

    NEW = "new"
    ANSWERED = "answered"
    """`initialize` is answered, `notifications/initialized` not seen: the client may send requests, we may not."""
    OPERATION = "operation"


class Session:
    """Made by `Server.connect`. All methods but `run` and `ask` are synchronous and never wait."""

    def __init__(
        self,
        server: "Server",
        send: Callable[[bytes, RequestId | None], None],
        crash: Crash,
        message_bytes: int,
        principal: str | None,
        blocked: Blocked | None,
    ) -> None:
        self.server = server
        self.principal = principal
        self.client = Client()
        self.state: Any = None
        self.level: Level = "info"
        self.offers: frozenset[str] = frozenset()
        self.subscriptions: dict[str, trio.CancelScope] = {}
        self.subscribing: Counter[str] = Counter()
        """Requests to subscribe to what providers have that are under way."""
        self._phase = Phase.NEW
        self._send = send
        self._crash = crash
        self._blocked = blocked
        self._message_bytes = message_bytes
        self._calls: dict[RequestId, trio.CancelScope] = {}
        self._asking = Asking(send, server.patience)
        self._initialized = trio.Event()
        self._visits: dict[str, None] = {}
        self._changed: dict[ListKind, None] = {}
        self._nursery: trio.Nursery | None = None
        self._background = trio.CancelScope()
        self._sender, self._inbox = trio.open_memory_channel[tuple[bytes, Rights]](INBOX)
        self._rights = NO_RIGHTS
        """Of the frame that is being read."""

    # Frames ---------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, rights: Rights = NO_RIGHTS) -> bool:
        """Takes a frame, also before `run` has started; False if there is no room, or the session has ended."""
        try:
            self._sender.send_nowait((frame, rights))
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
            return False
        return True

    async def run(self) -> None:
        """Serves until `close`, then cancels what is still running."""
        self.server.joined(self)
        try:
            async with trio.open_nursery() as self._nursery:
                self._run_backgrounds()
                async for frame, rights in self._inbox:
                    self._read(frame, rights)
                    self._read_rest()
                self._nursery.cancel_scope.cancel()
        finally:
            self.server.left(self)
            self._inbox.close()
            with trio.move_on_after(LEAVING, shield=True):
                await self._leave_providers()

    def _run_backgrounds(self) -> None:
        """What the server does beside answering, as long as it is this session's."""
        self._background.cancel()
        self._background = trio.CancelScope()
        if self.server.backgrounds:
            self._spawn(self._in_background, list(self.server.backgrounds), self._background)

    async def _in_background(self, backgrounds: Iterable[Background], scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                for background in backgrounds:
                    nursery.start_soon(self._apart, "background", background.run)

    async def _apart(self, method: str, work: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Does what no request waits for. A crash of it is logged."""

        async def inside() -> None:
            with failures.no_exit():
                await work(*args)

        await boundary(inside, on_exit=partial(self.undescribed, method))

    async def _leave_providers(self) -> None:
        """Tells providers of what nobody hears of any more."""
        subscribers = self.server.subscribers
        left = subscribers.of(self)
        for uri in left:
            subscribers.discard(uri, self)
        for uri in left:
            provider = self.server.provider_of(uri)
            if provider is not None:
                await self._apart("resources/unsubscribe", subscribers.settle, uri, provider)

    def close(self) -> None:
        """Ends the session once the frames already here have been read. Idempotent."""
        self._sender.close()

    def cancel(self, id: RequestId) -> None:
        """Stops a request, which then gets no answer; of one that is not running nothing happens."""
        if id in self._calls:
            self._calls[id].cancel()

    def _read_rest(self) -> None:
        """All that is there, in one turn: a turn for each frame would make the inbox grow under load."""
        while True:
            try:
                frame, rights = self._inbox.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return
            self._read(frame, rights)

    def _read(self, frame: bytes, rights: Rights) -> None:
        self._rights = rights
        try:
            message = codec.decode_frame(frame)
        except codec.Malformed as malformed:
            self._take(malformed)
            return
        if not isinstance(message, codec.Batch):
            self._take(message)
        elif self._phase is not Phase.NEW and can_use(self.client.revision, "batches"):
            for entry in message.messages:
                self._take(entry)
        else:
            self._send(codec.encode_error(None, errors.batch_refused()), None)

    def _take(self, message: Request | Notification | Result | Error | codec.Malformed) -> None:
        match message:
            case Request():
                self._start(message)
            case Notification():
                self._notice(message)
            case Result() | Error():
                self._asking.answered(message)
            case codec.Malformed():
                self._send(codec.encode_error(message.id, message.error), message.id)

    def _notice(self, notification: Notification) -> None:
        """Unknown and malformed notifications are ignored: nobody could be told of them."""
        match notification.method:
            case "notifications/initialized" if self._phase is Phase.ANSWERED:
                self._phase = Phase.OPERATION
                self._initialized.set()
                self._tell_changes()
            case "notifications/cancelled":
                with suppress(codec.Malformed):
                    if (id := payload.cancelled_id(notification.params)) is not None:
                        self.cancel(id)
            case _:
                pass

    # Requests -------------------------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        refusal = self._refusal(request)
        if refusal:
            self._send(codec.encode_error(request.id, refusal), request.id)
            return
        match methods.METHODS[request.method]:
            case methods.AtOnce(_, do):
                self._answer(request, do)
            case methods.InTask(_, do):
                self._serve_later(request, do)

    def _serve_later(self, request: Request, do: methods.Rest) -> None:
        scope = self._calls[request.id] = trio.CancelScope()
        self._spawn(self._serve, request, do, scope, self._rights)

    def _refusal(self, request: Request) -> errors.ProtocolError | None:
        if request.id in self._calls:
            return errors.invalid_request("this id is in use")
        if request.method == "ping":
            return None
        if request.method == "initialize":
            return None if self._phase is Phase.NEW else errors.already_initialized()
        if self._phase is Phase.NEW:
            return errors.not_initialized()
        method = methods.METHODS.get(request.method)
        if method is None or method.needs not in self.offers:
            return errors.method_not_found(request.method)
        if len(self._calls) >= self.server.requests_per_session:
            return errors.too_many_requests()
        return None

    def _answer(self, request: Request, do: Callable[["Session", methods.Params], object]) -> None:
        answers: list[bytes] = []

        def work() -> None:
            with failures.no_exit():
                done = do(self, codec.members(request.params))
                if isinstance(done, Mapping):
                    answers.append(self._result(request, done))
                else:
                    self._serve_later(request, cast(methods.Rest, done))

        thread_boundary(work, on_exit=partial(self._ended, request, answers))
        if answers:
            self._send(answers[0], request.id)

    async def _serve(self, request: Request, do: methods.Rest, scope: trio.CancelScope, rights: Rights) -> None:
        answers: list[bytes] = []

        async def work() -> None:
            token = codec.progress_token(request.params)
            context = Context(self, request.id, token, rights, self._asking_client(request.params))
            with failures.no_exit():
                params = codec.members(request.params)
                done = Stepped(do(self, context, params), partial(self._slow, request.method, params))
                answers.append(self._result(request, await done))

        try:
            with scope:
                await boundary(work, on_exit=partial(self._ended, request, answers))
        finally:
            del self._calls[request.id]
        if answers and not scope.cancel_called:
            self._tell_changes()
            self._send(answers[0], request.id)

    def _asking_client(self, params: Raw) -> Client:
        """Of several clients without sessions, whose calls come over one connection, each request names its own."""
        info = meta.info_of(params)
        return self.client.introduced(codec.loads(info)) if info else self.client

    def _result(self, request: Request, value: Mapping[str, Any]) -> bytes:
        return self._fitting(codec.encode_result(request.id, Raw(to_json(value))))

    def _ended(self, request: Request, answers: list[bytes], outcome: Exit) -> None:
        if outcome.error:
            answers.append(self._failure(request, outcome.error))

    def _failure(self, request: Request, error: BaseException) -> bytes:
        error = failures.chosen(error)
        if not failures.is_expected(error):
            self._crash(request.method, error)
        if isinstance(error, UrlRequiredError):
            self.visited_by(error.elicitations)
        frame = failures.answer(request, error, self.client)
        if len(frame) > self._message_bytes:
            return failures.answer(request, self._too_large(frame), self.client)
        return frame

    def _slow(self, method: str, params: methods.Params, seconds: float) -> None:
        if self._blocked:
            self._blocked(method, methods.called(self, method, params), seconds)

    def undescribed(self, method: str, outcome: Exit) -> None:
        """If this is the outcome of a crash: of what could not say what it is and was left out of a list, or of what no
        request waits for."""
        if outcome.error:
            self._crash(method, outcome.error)

    def is_running(self, id: RequestId) -> bool:
        """Whether this request is not answered yet."""
        return id in self._calls

    def opened(self, client: Client, offers: Iterable[str]) -> None:
        """The handshake is done: who the client is, and what this session offers from here on."""
        self.client, self.offers = client, frozenset(offers)
        self._phase = Phase.ANSWERED

    # To the client --------------------------------------------------------------------------------------------

    async def ask(self, method: str, params: Mapping[str, Any] | None, related: RequestId | None) -> Any:
        """A request to the client, sent once the client said that it is ready (lifecycle, "Initialization")."""
        raw = EMPTY if params is None else Raw(self._fitting(to_json(params)))
        try:
            with trio.fail_after(self.server.patience):
                await self._initialized.wait()
        except trio.TooSlowError:
            raise ClientTimeoutError("The client did not finish the handshake in time") from None
        return await self._asking.ask(method, raw, related)

    def notify(self, method: str, params: Mapping[str, Any] | None = None, related: RequestId | None = None) -> None:
        """Sends a notification. TooLargeError."""
        raw = EMPTY if params is None else Raw(to_json(params))
        self._send(self._fitting(codec.encode_notification(method, raw)), related)

    def resource_updated(self, uri: str) -> None:
        """Tells the client if it subscribed to the resource."""
        if uri in self.subscriptions:
            self.notify("notifications/resources/updated", {"uri": uri})

    def list_changed(self, kind: ListKind) -> None:
        """Tells the client, when it is ready, if it was offered such a list at all. Several changes are told as one, at
        the loop's next turn, or before the next answer if that comes first."""
        if kind not in self.offers or self._phase is Phase.NEW:
            return
        if self._phase is Phase.OPERATION and not self._changed:
            self._spawn(self._tell_changes_soon)
        self._changed[kind] = None

    async def _tell_changes_soon(self) -> None:
        await trio.lowlevel.checkpoint()
        self._tell_changes()

    def _tell_changes(self) -> None:
        if self._phase is Phase.OPERATION:
            changed, self._changed = self._changed, {}
            for kind in changed:
                self.notify(f"notifications/{kind}/list_changed")

    def go_on_with(self, heir: "Server") -> None:
        """From here on it is a session with another server, of which the client may expect what it was offered: it is
        told that each of its lists has changed, and each resource that it subscribed to."""
        left, self.server = self.server, heir
        left.left(self)
        heir.joined(self)
        self._run_backgrounds()
        self._spawn(self._subscribe_again, left)
        for kind in LIST_KINDS:
            self.list_changed(kind)

    def provided(self, scheme: str) -> None:
        """A provider has come, who may not know what this session subscribed to."""
        uris = [uri for uri in self.subscriptions if scheme_of(uri) == scheme]
        if uris:
            self._spawn(self._subscribe_to, uris)

    async def _subscribe_to(self, uris: Iterable[str]) -> None:
        for uri in uris:
            if uri in self.subscriptions:
                await self._apart("resources/subscribe", methods.subscribe_again, self, uri)
                self.resource_updated(uri)

    async def _subscribe_again(self, left: "Server") -> None:
        providers = {uri: left.provider_of(uri) for uri in left.subscribers.of(self)}
        for uri, provider in providers.items():
            left.subscribers.discard(uri, self)
            if provider is not None:
                await self._apart("resources/unsubscribe", left.subscribers.settle, uri, provider)
        await self._subscribe_to(list(self.subscriptions))

    def visited_by(self, elicitations: Iterable[UrlElicitation]) -> None:
        """Remembers that this client was sent to these pages, for `elicitation_complete`."""
        self._visits |= dict.fromkeys(e.id for e in elicitations)
        while len(self._visits) > VISITS:
            del self._visits[next(iter(self._visits))]

    def elicitation_complete(self, id: str) -> None:
        """Tells the client that the visit is over, if it is the one that was sent there (client/elicitation)."""
        if id in self._visits:
            del self._visits[id]
            self.notify("notifications/elicitation/complete", {"elicitationId": id})

    # Subscriptions --------------------------------------------------------------------------------------------

    def subscribe(self, uri: str, every: float | None) -> None:
        """From here on the client hears of changes; `every` so many seconds the resource changes by itself."""
        if uri not in self.subscriptions:
            scope = self.subscriptions[uri] = trio.CancelScope()
            if every is not None:
                self._spawn(self._tick, uri, every, scope)

    def unsubscribe(self, uri: str) -> None:
        """The reverse; nothing happens where there is no subscription."""
        scope = self.subscriptions.pop(uri, None)
        if scope:
            scope.cancel()

    async def _tick(self, uri: str, every: float, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep(every)
                self.resource_updated(uri)

    def _spawn(self, task: Callable[..., Any], *args: Any) -> None:
        assert self._nursery is not None, "requests are read by run"
        self._nursery.start_soon(partial(task, *args))

    def _fitting(self, frame: bytes) -> bytes:
        if len(frame) > self._message_bytes:
            raise self._too_large(frame)
        return frame

    def _too_large(self, frame: bytes) -> TooLargeError:
        return TooLargeError(f"The message has {len(frame)} bytes, and {self._message_bytes} are allowed")
