"""The client: requests and their answers, what servers ask meanwhile, and what they tell."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import trio
from msgspec import Raw

from actors.machines.upstream import era as eras
from actors.machines.upstream.era import Case, Verdict
from actors.ports import FrameReceived, RequestFailed, SessionLost
from actors.protocol import errors
from actors.protocol.errors import Malformed
from actors.protocol.messages import RequestId
from actors.protocol.meta import SERVER_KEY
from actors.protocol.payload import dumps, loads
from actors.protocol.versions import LATEST_HANDSHAKE, MODERN, SERVED, VERSIONS, Era, era_of
from actors.runtime.boundary import boundary
from gateway.client import conversation as talk
from gateway.client.conversation import Conversation, Handshake, Outgoing, Stateless
from gateway.client.errors import (
    ClientError,
    ConnectionLostError,
    InputError,
    InvalidAnswerError,
    McpError,
    RequestFailedError,
    SessionForgottenError,
    VersionError,
)
from gateway.client.handlers import Handlers, given
from gateway.client.input_rounds import ROUNDS, answers, wants_input
from gateway.client.mirrors import Lists
from gateway.client.pages import Pages
from gateway.client.subscriptions import Subscription, Watching
from gateway.client.transport import Received, Transport
from gateway.client.values import (
    CallResult,
    Completion,
    Prompt,
    PromptResult,
    ReadResult,
    Resource,
    ResourceTemplate,
    Tool,
    mapping,
    typed,
)
from gateway.client.waiting import Room

Progress: TypeAlias = Callable[[float, float | None, str | None], Any]
"""Takes value, total and message; it may be an async function."""

CLOSE_WITHIN: Final = 2.0
"""Seconds for telling a server that nobody waits for a request any more."""
PROGRESS_MAX: Final = 256
"""Steps of progress that may wait for a slow function, if there is room; the oldest are dropped."""
LOGS_MAX: Final = 1024
"""The same of log messages; the newest are dropped."""
ASKED_MAX: Final = 256
"""Questions of the server that are worked on at once; a further one is refused."""
REPLIES_MAX: Final = 256
"""Refusals and answers to pings that wait to be sent; while there are so many, nothing more is read."""

_LOG: Final = logging.getLogger("stagedoor.client")


Connect: TypeAlias = Callable[[], Awaitable[Transport]]


class _Call:
    """A request that somebody waits for."""

    __slots__ = ("_outcome", "_room", "_steps", "_wake")

    def __init__(self) -> None:
        self._wake = trio.Event()
        self._steps: deque[tuple[Mapping[str, Any], int]] = deque()
        self._room = Room(PROGRESS_MAX)
        self._outcome: Raw | ClientError | None = None

    @property
    def settled(self) -> bool:
        return self._outcome is not None

    def step(self, params: Mapping[str, Any], size: int) -> None:
        while not self._room.fits(size):
            self._next()
        self._steps.append((params, size))
        self._room.take(size)
        self._wake.set()

    def _next(self) -> Mapping[str, Any]:
        params, size = self._steps.popleft()
        self._room.give(size)
        return params

    def settle(self, outcome: Raw | ClientError) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._wake.set()

    async def outcome(self, progress: Progress | None) -> Raw:
        """The result. `progress` runs in the task that waits, so that it may end the wait by raising."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._steps and progress is not None:
                step = self._next()
                await given(progress, step.get("progress"), step.get("total"), step.get("message"))
            if isinstance(self._outcome, ClientError):
                raise self._outcome
            if self._outcome is not None:
                return self._outcome


class Link:
    """The transport, and how to come by another one. `again`: some processes end when they are asked what they don't
    know; `other`: some URLs are those of an older transport."""

    def __init__(self, transport: Transport, again: Connect | None = None, other: Connect | None = None) -> None:
        self.transport = transport
        self.again = again
        self.other = other

    async def renew(self, connect: Connect) -> None:
        """There is another one from here on. ConnectionLostError."""
        before, self.transport = self.transport, await connect()
        await before.close()


class Client:
    """Made by `open_client`. All methods that wait end when the connection is gone, with ConnectionLostError."""

    def __init__(
        self,
        link: Link,
        handlers: Handlers,
        info: Mapping[str, str],
        nursery: trio.Nursery,
        last_words: trio.Nursery,
    ) -> None:
        """`nursery` is for what goes on until the connection ends, `last_words` for what is sent before it does."""
        self._link = link
        self._nursery = nursery
        self._last_words = last_words
        self._handlers = handlers
        self._info = dict(info)
        self._talk = Conversation()
        self._calls: dict[int, _Call] = {}
        self._asked: dict[RequestId, trio.CancelScope] = {}
        self._answering = Room(ASKED_MAX)
        self._replies = 0
        self._replied = trio.lowlevel.ParkingLot()
        self._lost: ConnectionLostError | None = None
        self.ending = False
        self._logs, self._log_box = trio.open_memory_channel[tuple[dict[str, Any], int]](LOGS_MAX)
        self._log_room = Room(LOGS_MAX)
        self._begun: dict[str, Any] = {}
        self._wanted: str | None = None
        self._level: str | None = None
        self._session = 0
        self._renewing = trio.Lock()
        self._lists = Lists()
        self._watching = Watching(self, nursery)

    # Who is there ---------------------------------------------------------------------------------------------

    @property
    def protocol_version(self) -> str:
        """The revision that is spoken."""
        return self._talk.dialect.version

    @property
    def capabilities(self) -> dict[str, Any]:
        """The server's, as it said."""
        said = self._begun.get("capabilities")
        return said if isinstance(said, dict) else {}

    @property
    def server_info(self) -> dict[str, Any]:
        """Its name and version, as it said."""
        said = self._begun.get("serverInfo") or mapping(self._begun.get("_meta")).get(SERVER_KEY)
        return said if isinstance(said, dict) else {}

    @property
    def instructions(self) -> str | None:
        """How the server is to be used, if it said."""
        said = self._begun.get("instructions")
        return said if isinstance(said, str) else None

    @property
    def raw(self) -> dict[str, Any]:
        """What the server said first."""
        return self._begun

    @property
    def transport(self) -> Transport:
        """What carries the messages: its `session_id` and `last_event_id`."""
        return self._link.transport

    # What can be asked ----------------------------------------------------------------------------------------

    def list_tools(self) -> Pages[Tool]:
        """`await` gives all; `async for` fetches one page after the other, as it gets there."""
        return Pages(self.request, "tools/list", "tools", Tool)

    def list_resources(self) -> Pages[Resource]:
        """As `list_tools`."""
        return Pages(self.request, "resources/list", "resources", Resource)

    def list_templates(self) -> Pages[ResourceTemplate]:
        """As `list_tools`."""
        return Pages(self.request, "resources/templates/list", "resourceTemplates", ResourceTemplate)

    def list_prompts(self) -> Pages[Prompt]:
        """As `list_tools`."""
        return Pages(self.request, "prompts/list", "prompts", Prompt)

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, progress: Progress | None = None
    ) -> CallResult:
        """Calls a tool, once. A tool that failed is a result too (`is_error`)."""
        params = {"name": name, "arguments": dict(arguments or {})}
        return typed(CallResult, await self.request("tools/call", params, progress=progress))

    async def read_resource(self, uri: str) -> ReadResult:
        """What the resource at this URI holds."""
        return typed(ReadResult, await self.request("resources/read", {"uri": uri}))

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> PromptResult:
        """The messages of a prompt."""
        params = {"name": name, "arguments": dict(arguments or {})}
        return typed(PromptResult, await self.request("prompts/get", params))

    async def complete(
        self, ref: str | Mapping[str, Any], argument: str, value: str, *, context: Mapping[str, str] | None = None
    ) -> Completion:
        """What the `value` of an argument may go on with. `ref` is a prompt's name, a template (anything with a colon),
        or a reference as the protocol writes it; `context` are the arguments that are known already."""
        params: dict[str, Any] = {"ref": _reference(ref), "argument": {"name": argument, "value": value}}
        if context is not None:
            params["context"] = {"arguments": dict(context)}
        raw = await self.request("completion/complete", params)
        completion = typed(Completion, raw.get("completion"))
        completion.raw = raw
        return completion

    async def set_level(self, level: str) -> None:
        """Which log messages come from here on: those of this level and above."""
        if isinstance(self._talk.dialect, Stateless):
            await trio.lowlevel.checkpoint()
            self._talk.dialect.level = level
        else:
            await self.request("logging/setLevel", {"level": level})
        self._level = level

    def subscribe(self, uri: str) -> Subscription:
        """The changes of a resource: `async for update in client.subscribe(uri)`. In force from the first step on; with
        `async with client.subscribe(uri) as updates` from the beginning of the block to its end. Changes that come
        faster than they are taken count once."""
        return Subscription(self._watching, uri)

    async def ping(self) -> None:
        """Waits for a sign of life. (The era without sessions has no ping; what every server answers stands for it.)"""
        await self.request("server/discover" if self.stateless else "ping")

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Any request, and its result as it came. It is sent again only where the server said that it did not look at
        it, or that it wants to know something first, which handlers have answered."""
        said, rounds = dict(params or {}), 0
        while True:
            result = await self._accepted(method, said, progress)
            if not wants_input(result, self._talk.dialect, method):
                return self._lists.heard(result) if method == "tools/list" else result
            rounds += 1
            if rounds > ROUNDS:
                raise InputError(f"the server wants to know more after {ROUNDS} rounds")
            said = dict(params or {}) | await answers(result, self._handlers, rounds)

    @property
    def stateless(self) -> bool:
        """Whether the server is of the era without sessions."""
        return not self._talk.dialect.asks

    async def listen(self, params: Mapping[str, Any], sent: Callable[[int], object]) -> None:
        """A request that lasts as long as it is wanted; `sent` is told its id."""
        await self._once("subscriptions/listen", params, sent=sent)

    # The connection -------------------------------------------------------------------------------------------

    async def begin(self, version: str | None) -> None:
        """Agrees with the server on a revision. VersionError."""
        self._wanted = version
        self._nursery.start_soon(self._tell_logs)
        self._nursery.start_soon(self.run)
        if version is None:
            await self._detect()
            return
        if version not in SERVED:
            raise VersionError(f"{version} is no revision known here")
        try:
            if era_of(version) is Era.MODERN:
                await self._over_either(partial(self._discover, version))
            else:
                await self._shake_hands()
        except McpError as error:
            table = eras.PROBE if era_of(version) is Era.MODERN else eras.INITIALIZE
            if table[eras.of_error(dumps(error.raw), error.status)] in (Verdict.LEGACY, Verdict.LOOK):
                raise VersionError(f"the server does not speak {version}: {error}") from error
            raise

    async def run(self) -> None:
        """Takes what comes, until the connection is gone."""
        transport = self._link.transport
        outcome = await boundary(self._receive, transport)
        lost = outcome.error
        if not isinstance(lost, ConnectionLostError):
            if lost is not None and not isinstance(lost, trio.EndOfChannel):
                _LOG.error("the transport crashed", exc_info=lost)
            lost = ConnectionLostError(f"the connection is gone: {lost!r}" if lost else "the connection is gone")
        if transport is self._link.transport:
            self.lose(lost)

    def lose(self, lost: ConnectionLostError) -> None:
        """The connection is gone: whoever waits hears of it."""
        if self._lost is None:
            self._lost = lost
        for call in list(self._calls.values()):
            call.settle(_again(lost))
        for scope in list(self._asked.values()):
            scope.cancel()
        self._watching.fail(lost)

    async def _receive(self, transport: Transport) -> None:
        while True:
            self._take(await transport.receive())
            while self._replies >= REPLIES_MAX:
                await self._replied.park()

    def _take(self, received: Received) -> None:
        match received:
            case RequestFailed():
                self._settle(
                    received.id,
                    RequestFailedError(
                        received.message, reason=received.reason, executed=received.executed, status=received.status
                    ),
                )
            case SessionLost(id=None):
                self._nursery.start_soon(self._renew_soon, self._session)
            case SessionLost(id=int(id)):
                self._settle(id, SessionForgottenError())
            case SessionLost():
                pass  # no request of ours has such an id
            case FrameReceived():
                self._read(received.frame, received.status)
            case bytes():
                self._read(received, None)

    def _read(self, frame: bytes, status: int | None) -> None:
        events = self._talk.read(frame)
        for event in events:
            size = len(frame) // len(events)
            match event:
                case talk.Answered():
                    self._settle(event.id, event.result)
                case talk.Refused():
                    self._settle(event.id, McpError.of(event.error, status))
                case talk.Progressed() if event.id in self._calls:
                    self._calls[event.id].step(event.params, size)
                case talk.Requested() if not self._answering.fits(size):
                    full = errors.too_many_requests("to this client")
                    self._reply(self._talk.refuse(event.id, talk.of_error(full)))
                case talk.Requested():
                    self._answering.take(size)
                    self._nursery.start_soon(self._answer, event, size)
                case talk.Withdrawn() if event.id in self._asked:
                    self._asked[event.id].cancel()
                case talk.Withdrawn() if self.stateless:  # in the other era either side withdraws its own alone
                    self._settle(
                        event.id, RequestFailedError("the server ended it", reason="ended", executed="unknown")
                    )
                case talk.Say():
                    self._reply(event.outgoing)
                case talk.Notified():
                    self._told(event, size)
                case talk.Progressed() | talk.Withdrawn():
                    pass  # nobody waits for that one any more

    def _settle(self, id: RequestId, outcome: Raw | ClientError) -> None:
        call = self._calls.get(id) if isinstance(id, int) else None
        if call is not None:
            call.settle(Raw(bytes(outcome)) if isinstance(outcome, Raw) else outcome)

    async def _accepted(
        self, method: str, params: Mapping[str, Any], progress: Progress | None = None
    ) -> dict[str, Any]:
        """A request that is sent again if the server did not look at it: it had forgotten the session, or could not do
        without headers that are known only from the list of tools."""
        session = self._session
        try:
            return await self._once(method, params, progress=progress)
        except SessionForgottenError:
            await self._renew(session)
        except McpError as error:
            if error.code != errors.HEADER_MISMATCH or method != "tools/call":
                raise
            await self.list_tools()
        return await self._once(method, params, progress=progress)

    async def _once(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        progress: Progress | None = None,
        withdrawn: bool = True,
        sent: Callable[[int], object] | None = None,
    ) -> dict[str, Any]:
        if self._lost is not None:
            raise ConnectionLostError(str(self._lost), executed="no")
        mirrored = self._lists.mirrored(params) if method == "tools/call" else ()
        outgoing = self._talk.ask(method, params, progress=progress is not None, mirrored=mirrored)
        call = self._calls[outgoing.id] = _Call()
        try:
            if sent is not None:
                sent(outgoing.id)
            await self._link.transport.send(outgoing.frame, outgoing.headers)
            result = _read(await call.outcome(progress))
        finally:
            del self._calls[outgoing.id]
            self._talk.forget(outgoing.id)
            if not (call.settled or self.ending or self._lost is not None) and withdrawn:
                self._last_words.start_soon(self._say, self._talk.withdraw(outgoing.id))
        return result

    async def _say(self, outgoing: Outgoing) -> None:
        """Sends what nobody waits for; also when the client is being closed, for a moment."""
        with trio.move_on_after(CLOSE_WITHIN, shield=True):
            await boundary(self._link.transport.send, outgoing.frame, outgoing.headers)

    # What servers ask and tell --------------------------------------------------------------------------------

    def _reply(self, outgoing: Outgoing) -> None:
        self._replies += 1
        self._nursery.start_soon(self._say_back, outgoing)

    async def _say_back(self, outgoing: Outgoing) -> None:
        try:
            await self._say(outgoing)
        finally:
            self._replies -= 1
            self._replied.unpark()

    async def _answer(self, asked: talk.Requested, size: int) -> None:
        try:
            await self._answer_one(asked)
        finally:
            self._answering.give(size)

    async def _answer_one(self, asked: talk.Requested) -> None:
        scope = self._asked[asked.id] = trio.CancelScope()
        said: list[Outgoing] = []
        with scope:
            outcome = await boundary(self._handle, asked, said)
            if outcome.error is not None:
                said.append(self._talk.refuse(asked.id, _refusal(asked.method, outcome.error)))
        if self._asked.get(asked.id) is scope:
            del self._asked[asked.id]
        if said and not scope.cancelled_caught and self._lost is None:
            await boundary(self._link.transport.send, said[0].frame, said[0].headers)

    async def _handle(self, asked: talk.Requested, said: list[Outgoing]) -> None:
        handler = self._handlers.handler(asked.method)
        if handler is None:
            said.append(self._talk.refuse(asked.id, talk.unknown(asked.method)))
        else:
            said.append(self._talk.answer(asked.id, await handler(asked.params)))

    def _told(self, told: talk.Notified, size: int) -> None:
        if told.method != "notifications/message" or self._handlers.log is None:
            self._watching.told(told.method, told.params, size)
        elif self._log_room.fits(size):
            self._log_room.take(size)
            self._logs.send_nowait((dict(told.params), size))
        else:
            _LOG.warning("a log message was dropped: its function is too slow")

    async def _tell_logs(self) -> None:
        async for params, size in self._log_box:
            outcome = await boundary(partial(given, self._handlers.log, params))
            self._log_room.give(size)
            if outcome.error is not None:
                _LOG.error("the log function crashed", exc_info=outcome.error)

    # The handshake --------------------------------------------------------------------------------------------

    async def _detect(self) -> None:
        """Asks in the newest era first, and in the other one if that is not the server's (2026-07-28, versioning)."""
        case, refusal = await self._probe()
        if eras.PROBE[case] is Verdict.LEGACY:
            if case is Case.EXITED and refusal is not None:
                await self._reconnect(self._link.again, refusal)
            try:
                await self._shake_hands()
            except McpError as error:
                # A process that was slow to start may have been taken for one of the handshake era.
                if case is not Case.SILENT or eras.INITIALIZE[eras.of_error(dumps(error.raw))] is not Verdict.LOOK:
                    raise
                case, refusal = await self._probe()
        if eras.PROBE[case] is not Verdict.LEGACY and refusal is not None:
            raise refusal

    async def _probe(self) -> tuple[Case, ClientError | None]:
        try:
            with trio.fail_after(eras.SILENCE):
                await self._discover(MODERN)
        except trio.TooSlowError:
            return Case.SILENT, None
        except McpError as error:
            return eras.of_error(dumps(error.raw), error.status), error
        except RequestFailedError as error:
            return eras.of_failure(error.reason, error.status), error
        except ConnectionLostError as error:
            return Case.EXITED, error
        except VersionError as error:
            return Case.FOREIGN, error
        return Case.MUTUAL, None

    async def _discover(self, version: str) -> None:
        level = self._level or ("info" if self._handlers.log is not None else None)
        self._talk.dialect = Stateless(self._handlers.capabilities(), self._info, version, level)
        try:
            result = await self._once("server/discover", None, withdrawn=False)
        except McpError as error:
            if version not in eras.supported_of(dumps(error.raw)):
                raise
            result = await self._once("server/discover", None, withdrawn=False)
        supported = result.get("supportedVersions")
        if not isinstance(supported, list) or version not in supported:
            raise VersionError(f"the server does not speak {version}")
        self._begun = result

    async def _reconnect(self, connect: Connect | None, lost: ClientError) -> None:
        if connect is None:
            raise lost
        await self._link.renew(connect)
        self._lost = None
        self._nursery.start_soon(self.run)

    async def _shake_hands(self) -> None:
        await self._over_either(self._initialize)

    async def _over_either(self, begin: Callable[[], Awaitable[None]]) -> None:
        """The first request; over an older transport where the server takes no POST (2025-11-25, transports)."""
        try:
            await begin()
        except (McpError, RequestFailedError) as refusal:
            if self._link.other is None or refusal.status is None:
                raise
            from gateway.wire.sse_2024 import may_be_sse

            if not may_be_sse(refusal.status, read=isinstance(refusal, McpError)):
                raise
            try:
                await self._reconnect(self._link.other, refusal)
            except ConnectionLostError:
                raise refusal from None
            await begin()

    async def _initialize(self) -> None:
        wanted = self._wanted or LATEST_HANDSHAKE
        params = {"protocolVersion": wanted, "capabilities": self._handlers.capabilities(), "clientInfo": self._info}
        self._talk.dialect = Handshake()
        result = await self._once("initialize", params, withdrawn=False)
        version = result.get("protocolVersion")
        if version not in VERSIONS or (self._wanted is not None and version != wanted):
            raise VersionError(f"the server speaks {version}, not {self._wanted or 'any revision known here'}")
        self._talk.dialect = Handshake(version)
        self._begun = result
        ready = self._talk.tell("notifications/initialized")
        await self._link.transport.send(ready.frame, ready.headers)

    async def _renew_soon(self, session: int) -> None:
        """For those who wait for what the server says by itself."""
        try:
            await self._renew(session)
        except ClientError as error:
            self._watching.fail(error)

    async def _renew(self, session: int) -> None:
        """A new session in the place of one that the server has forgotten, once, whoever notices it first."""
        async with self._renewing:
            if self._session == session:
                await self._initialize()
                if self._level is not None:
                    await self._once("logging/setLevel", {"level": self._level})
                await self._watching.renew()
                self._session += 1


def _read(result: Raw) -> dict[str, Any]:
    try:
        read = loads(result)
    except Malformed as malformed:
        raise InvalidAnswerError(f"not a result: {malformed}") from None
    assert isinstance(read, dict), "the decoder lets no other result pass"
    return read


def _reference(ref: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(ref, str):
        return dict(ref)
    return {"type": "ref/resource", "uri": ref} if ":" in ref else {"type": "ref/prompt", "name": ref}


def _refusal(method: str, error: BaseException) -> dict[str, Any]:
    """What a server is told of a handler that raised."""
    if isinstance(error, McpError):
        return error.raw
    _LOG.error("the handler of %s crashed", method, exc_info=error)
    return {"code": errors.INTERNAL, "message": "the client's handler failed"}


def _again(lost: ConnectionLostError) -> ConnectionLostError:
    """The same for another who waits: an exception has one traceback."""
    made = ConnectionLostError(str(lost))
    made.stderr = lost.stderr
    return made
