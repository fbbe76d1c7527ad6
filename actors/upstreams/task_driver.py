"""Tools that run only as tasks (2025-11-25, tasks), called over one upstream connection by clients that know no
tasks.

Which tools those are the server says in its list, which is asked for when the first such call comes. A call of one
of them is driven by `task_drive`; of any other it goes out as it came.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.durations import tool_name
from actors.machines.upstream import events as ev
from actors.machines.upstream import task_drive
from actors.machines.upstream.events import CallKey, ServerInfo
from actors.protocol import capabilities, errors, tasks
from actors.protocol.aggregate import item_name
from actors.protocol.capabilities import Capabilities
from actors.protocol.errors import BROKEN
from actors.protocol.messages import EMPTY, RequestId
from actors.protocol.methods import LIST_CHANGED
from actors.protocol.rights import NO_RIGHTS, Rights
from actors.protocol.steady import Items
from actors.runtime import Context
from actors.services import Services
from actors.upstreams.connection import key_of
from actors.upstreams.own_calls import OwnCalls, Then
from actors.upstreams.paging import Page, Paging

LIST, CALL = "tools/list", "tools/call"

ENDLESS = (CALL, tasks.RESULT)
"""Requests without a deadline of their own: that of the call is theirs."""


class PollDue(Struct, frozen=True):
    """A task is to be looked at."""

    call: CallKey


@dataclass(slots=True)
class _Driven:
    """`requests` are those under way, by their number on the upstream connection; `asked` the server's server
    requests that were passed on. All is asked for with the `rights` of the call."""

    drive: task_drive.Drive
    progress: bool
    rights: Rights
    requests: dict[int, int] = field(default_factory=dict)
    asked: set[RequestId] = field(default_factory=set)


class TaskDriver:
    """Drives the tasks of one connection to `backend`. `step` steps its machine, `finish` gives a call its outcome;
    what is asked for the calls goes out as `own`."""

    def __init__(
        self,
        backend: str,
        ctx: Context,
        services: Services,
        own: OwnCalls,
        step: Callable[[ev.UpstreamEvent], None],
        finish: Callable[[ev.Finish], None],
    ) -> None:
        self._backend = backend
        self._ctx = ctx
        self._limits = services.limits
        self._own = own
        self._step = step
        self._finish = finish
        self._server: Capabilities = capabilities.NOTHING
        self._required: frozenset[str] | None = None
        """The tools that run as tasks only; None: not known."""
        self._paging: Paging | None = None
        self._waiting: list[ev.Entrust] = []
        self._driven: dict[CallKey, _Driven] = {}

    # Calls

    def ready(self, server_info: ServerInfo) -> None:
        """The server may be another one than before."""
        self._server = capabilities.parse(server_info.capabilities)
        self._required = None

    def entrusted(self, call: ev.Entrust) -> None:
        """A call of a tool, by a client that knows no tasks."""
        if self._required is None:
            self._waiting.append(call)
            self._look(call.rights)
        elif tool_name(call.params) in self._required:
            seconds = self._limits.request_deadline_cap
            drive, effects = task_drive.start(call.params, self._server, seconds, self._backend)
            self._driven[call.call] = _Driven(drive, call.progress, call.rights)
            self._run(call.call, effects)
        else:
            self._step(ev.Called(call.call, CALL, call.params, call.progress, final=True, rights=call.rights))

    def cancel(self, key: CallKey, reason: str) -> bool:
        """Nobody waits for a call any more; False if it is not looked after here."""
        waiting = [call for call in self._waiting if call.call != key]
        if len(waiting) < len(self._waiting):
            self._waiting = waiting
            return True
        if key not in self._driven:
            return False
        self._advance(key, task_drive.Cancelled(reason))
        driven = self._driven.get(key)
        if driven is not None and driven.drive.phase is task_drive.Phase.ABANDONED:
            for call in driven.requests:
                self._own.limit(call)  # nobody else's deadline runs for it any more
        return True

    # The list

    def _look(self, rights: Rights) -> None:
        if self._paging is None:

            def ask(params: Raw, page: Page) -> None:
                self.request(LIST, params, page, self._limits.list_deadline, rights)

            self._paging = Paging("tools", ask, self._looked)
            self._paging.start()

    def request(
        self, method: str, params: Raw, then: Then, seconds: float | None = None, rights: Rights = NO_RIGHTS
    ) -> None:
        """Asks the server for something, of no caller's account."""
        self._own.make(partial(self._send_own, method, params, rights), self._withdraw, then, seconds)

    def _send_own(self, method: str, params: Raw, rights: Rights, call: int, progress: bool = False) -> None:
        self._step(ev.Called((self._ctx.ref, call), method, params, progress, final=True, rights=rights))

    def _withdraw(self, call: int, reason: str) -> None:
        self._step(ev.Abandoned((self._ctx.ref, call), reason))

    def _looked(self, items: Items | None, error: Raw) -> None:
        """Where the server says nothing, it is asked again for the next call; this one goes out as it came."""
        self._paging = None
        waiting, self._waiting = self._waiting, []
        required = frozenset(item_name(item) or "" for item in items or () if self._is_required(item))
        self._required = required
        for call in waiting:
            self.entrusted(call)
        if items is None:
            self._required = None

    def _is_required(self, tool: Raw) -> bool:
        try:
            return task_drive.needs_task(tool, self._server)
        except errors.Malformed:
            return False

    # The drives

    def poll(self, key: CallKey) -> None:
        """Looks at a task whose time has come."""
        self._advance(key, task_drive.PollDue())

    def _advance(self, key: CallKey, event: task_drive.Event) -> None:
        driven = self._driven.get(key)
        if driven is not None:
            driven.drive, effects = task_drive.step(driven.drive, event)
            self._run(key, effects)

    def _run(self, key: CallKey, effects: list[task_drive.Effect]) -> None:
        driven = self._driven[key]
        if driven.drive.phase is task_drive.Phase.OVER:
            del self._driven[key]
            self._settle(driven)
        for effect in effects:
            match effect:
                case task_drive.Send(request, method, params):
                    self._send(key, driven, request, method, params)
                case task_drive.Drop(request, reason):
                    for call in [call for call, other in driven.requests.items() if other == request]:
                        self._own.drop(call, reason)
                case task_drive.StartPoll(seconds):
                    self._ctx.set_timer(("poll", key), seconds, PollDue(key))
                case task_drive.StopPoll():
                    self._ctx.cancel_timer(("poll", key))
                case task_drive.Finish(ok, payload):
                    self._finish(ev.Finish(key, ok, payload))

    def _send(self, key: CallKey, driven: _Driven, request: int, method: str, params: Raw) -> None:
        """The outcome may be there before this returns, so it is known by the request and not by the number."""

        def outcome(ok: bool, payload: Raw) -> None:
            lost = not ok and _lost(payload)
            self._advance(key, task_drive.Answered(request, ok, Raw(bytes(payload)), lost))

        def send(call: int) -> None:
            driven.requests.clear()
            driven.requests[call] = request
            self._send_own(method, params, driven.rights, call, progress=method == CALL and driven.progress)

        self._own.make(send, self._withdraw, outcome, math.inf if method in ENDLESS else None)

    def _settle(self, driven: _Driven) -> None:
        """Server requests end with their call; the server gets an answer to each."""
        error = errors.internal("the call that raised this request has ended", reason="call_ended").raw
        for id in driven.asked:
            self._step(ev.AnswerGiven(id, False, error))

    # What the server says

    def asked(self, effect: ev.ServerRequest) -> ev.ServerRequest:
        """A server request, as the call's client may get it."""
        key = self._key(effect.call, effect.params)
        if key is None:
            return replace(effect, call=None, place=None) if self._is_own(effect.call) else effect
        self._driven[key].asked.add(effect.id)
        return replace(effect, call=key, params=tasks.unrelated(effect.params), place=None)

    def told(self, effect: ev.Notify) -> ev.Notify:
        """A notification, likewise."""
        if effect.method == tasks.STATUS:
            for key in list(self._driven):
                self._advance(key, task_drive.StatusNotified(Raw(bytes(effect.params))))
        elif effect.method == LIST_CHANGED["tools"]:
            self._required = None
        key = self._key(effect.call, effect.params)
        if key is None:
            return replace(effect, call=None, place=None) if self._is_own(effect.call) else effect
        return replace(effect, call=key, params=tasks.unrelated(effect.params), place=None)

    def _key(self, call: CallKey | None, params: Raw) -> CallKey | None:
        """The driven call that a message belongs to."""
        if not self._driven:
            return None
        if call is not None and self._is_own(call):
            return next((key for key, driven in self._driven.items() if key_of(call)[1] in driven.requests), None)
        task = tasks.related_task(params) if call is None else None
        return next((key for key, driven in self._driven.items() if task and driven.drive.task == task), None)

    def _is_own(self, call: CallKey | None) -> bool:
        return call is not None and key_of(call)[0] is self._ctx.ref


class _Data(msgspec.Struct, frozen=True):
    executed: str = ""


class _Error(msgspec.Struct):
    data: _Data = _Data()


def _lost(error: Raw) -> bool:
    """Whether it was the connection that made this error: ours say what they know of the execution."""
    try:
        return bool(msgspec.json.decode(error or EMPTY, type=_Error).data.executed)
    except BROKEN:
        return False
