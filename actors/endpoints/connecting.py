"""Calls that wait until their user has connected his account at a server.

Such a call was refused before it was executed, by the gateway or by the server (`not_connected`). Its client is asked
to send the user to our page, in the way of its revision; when he has connected, the call is made anew, from the
beginning: what it may do, and with what, is decided again. It runs once at most, since nothing of it ran before.
"""

import secrets
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec import Raw, Struct

from actors.endpoints.host import Host
from actors.machines.session import effects as fx
from actors.ports import Accounts, Failed, Invitation
from actors.protocol import errors
from actors.protocol import payload as json
from actors.protocol.capabilities import ClientBits, client_refusal
from actors.protocol.errors import BROKEN
from actors.protocol.messages import Outcome
from actors.protocol.outcomes import MAY_ASK
from actors.runtime import EMPTY_TABLE, put
from actors.services import Services
from actors.upstreams.messages import UpstreamOutcome

WAITS: Final = 45.0
"""Seconds that a call waits for a user who has gone to the page: clients on the TypeScript SDK give up after 60."""
HOLDS: Final = 3
"""Times that one call is held: to connect, and for further rights."""
HELD_MAX: Final = 64
"""Calls of one client that are held; a further one is answered with the address of the page."""
OURS: Final = "Internal error: "
"""How the message of an error begins that is not the client's fault."""
CONNECT: Final = "connect"
"""The tool that stands for a server whose lists need an account."""


class Invited(Struct, frozen=True):
    """Where the user of this call can connect: an Invitation, or Failed."""

    call: int
    invitation: Invitation | Failed


class Waited(Struct, frozen=True):
    """Whether the user has connected his account."""

    call: int
    connected: bool


class AccountChanged(Struct, frozen=True):
    """The client's account at this server is another one, or is no more."""

    backend: str


AboutAccounts: TypeAlias = Invited | Waited | AccountChanged


@dataclass(slots=True)
class Held:
    """A call that waits. `asked`: the id of what its client was asked."""

    effect: fx.Dispatch
    backend: str
    holds: int
    message: str
    invitation: Invitation | None = None
    asked: str = ""
    waiting: bool = False


class Asker(Protocol):
    """What the rules of a client are in this. `era`: `legacy` or `modern`."""

    era: str

    @property
    def bits(self) -> ClientBits:
        """What the client can be asked."""

    def client_info(self, call: int) -> Raw:
        """What the client whose call it is says of itself."""

    def ask(self, call: int, id: str, params: Raw) -> None:
        """Sends the user to a page, by the client. `answered` follows, or the call is over with it."""

    def accepted(self, call: int) -> bool:
        """Whether the client comes again with this call, and says that the user has gone to the page."""

    def complete(self, params: Raw) -> None:
        """The user has been to the page."""

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        """Gives a call its outcome."""

    def again(self, effect: fx.Dispatch) -> None:
        """Makes a call anew."""


class Connecting:
    """Holds the calls of one client until its user has connected an account."""

    __slots__ = ("_asker", "_holds", "_host", "_open", "_principal", "_services", "held", "noted")

    def __init__(self, asker: Asker, services: Services, host: Host) -> None:
        self._asker = asker
        self._services = services
        self._host = host
        self._principal = host.principal.name
        self.noted: dict[int, tuple[fx.Dispatch, str]] = EMPTY_TABLE
        """Calls under way at servers with an account of each user."""
        self.held: dict[int, Held] = EMPTY_TABLE
        self._holds: dict[int, int] = EMPTY_TABLE
        """How often a call was held."""
        self._open: dict[str, str] = EMPTY_TABLE
        """By server: the page that the client was sent to, and has not been told of since."""

    @property
    def pending(self) -> int:
        """Calls of which something is remembered."""
        return len(self.noted.keys() | self.held.keys() | self._holds.keys())

    @property
    def _accounts(self) -> Accounts | None:
        return self._services.accounts

    def lacks(self, backend: str) -> bool:
        """Whether this server is known to want an account that the client's user has not connected."""
        spec, accounts = self._services.table.value.backends.get(backend), self._accounts
        return (
            accounts is not None and spec is not None and spec.connectable and accounts.lacks(self._principal, backend)
        )

    def note(self, effect: fx.Dispatch, backend: str) -> None:
        """The call goes to this server."""
        if effect.call > 0:
            self.noted = put(self.noted, effect.call, (effect, backend))

    def forget(self, call: int) -> None:
        """Nobody waits for this call any more."""
        for table in (self.noted, self.held, self._holds):
            table.pop(call, None)

    def takes(self, message: UpstreamOutcome) -> bool:
        """Whether a call is not over with this outcome: it is held from here on, or was told in words what it lacks."""
        effect, backend = self.noted.pop(message.call)
        error = _read(message.payload) if not message.ok and self._accounts is not None else None
        lacks = error is not None and error.data.reason == "not_connected" and error.data.executed == "no"
        if error is not None and lacks and self.hold(effect, backend, error.message.removeprefix(OURS)):
            return True
        self._holds.pop(message.call, None)
        if error is None or error.data != IN_VAIN or not effect.for_model:
            return False
        self._end(message.call, True, errors.as_result(error.message.removeprefix(OURS)))
        return True

    def hold(self, effect: fx.Dispatch, backend: str, message: str = "") -> bool:
        """Has the client send its user to the page, and the call wait; False if it has waited often enough."""
        call, accounts = effect.call, self._accounts
        holds = self._holds.get(call, 0) + 1
        if accounts is None or holds > HOLDS or len(self.held) >= HELD_MAX:
            return False
        self._holds = put(self._holds, call, holds)
        self.held = put(self.held, call, Held(effect, backend, holds, message))
        if self._asker.accepted(call) and holds == 1:
            self._wait(call)
        else:
            self._invite(call)
        return True

    def _invite(self, call: int) -> None:
        held, ref, accounts = self.held[call], self._host.ctx.ref, self._accounts
        assert accounts is not None
        client = client_name(self._asker.client_info(call))
        era = self._asker.era
        accounts.invite(self._principal, held.backend, client, era, lambda found: ref.reply(Invited(call, found)))

    def _wait(self, call: int) -> None:
        held, ref, accounts = self.held[call], self._host.ctx.ref, self._accounts
        assert accounts is not None
        held.waiting = True
        accounts.wait(
            self._principal, held.backend, WAITS, lambda connected: ref.reply(Waited(call, connected is True))
        )

    def receive(self, message: Invited | Waited) -> None:
        """Something has become of it."""
        held = self.held.get(message.call)
        if held is None:
            return
        if isinstance(message, Waited):
            if message.connected:
                self._go_on(message.call)
            else:
                self._not_in_time(message.call, held)
        elif isinstance(message.invitation, Failed):
            text = f"server {held.backend!r} needs an account, and it can't be said where to connect it"
            self._refuse(message.call, errors.internal(text, reason="auth_unavailable", executed="no"))
        else:
            self._invited(message.call, held, message.invitation)

    def _invited(self, call: int, held: Held, invitation: Invitation) -> None:
        held.invitation = invitation
        params = self._params(held, invitation)
        method = held.effect.method
        if method not in MAY_ASK or client_refusal(self._asker.bits, "elicitation/create", params) is not None:
            self._end(call, *in_words(held.effect.for_model, held.backend, held.message, invitation))
            return
        self._open = put(self._open, held.backend, invitation.id)
        held.asked = f"connect-{secrets.token_hex(8)}"
        self._asker.ask(call, held.asked, params)

    def _params(self, held: Held, invitation: Invitation) -> Raw:
        text = f"Connect your account at {held.backend!r} to go on."
        params = {"mode": "url", "message": text, "url": invitation.url}
        if self._asker.era == "legacy":  # 2026-07-28 has no such id: who comes again is told by its answer
            params["elicitationId"] = invitation.id
        return json.dumps(params)

    def answered(self, id: str, ok: bool, payload: Raw) -> bool:
        """The client has answered what it was asked here; False if it was not asked here."""
        call = next((call for call, held in self.held.items() if held.asked == id), None)
        if call is None:
            return False
        held = self.held[call]
        action = json.text_or_none(json.members(payload).get("action")) if ok else None
        if action == "accept":
            self._wait(call)
        elif ok:
            self._end(call, *declined(held.effect.for_model, held.backend))
        else:
            self._not_in_time(call, held)
        return True

    def _not_in_time(self, call: int, held: Held) -> None:
        """The client has the address, and may make the call again when its user has been there."""
        if held.invitation is None:
            held.waiting = False
            self._invite(call)  # a client that has come again gets the same page again
            return
        if held.effect.method not in MAY_ASK:
            self._end(call, *in_words(held.effect.for_model, held.backend, held.message, held.invitation))
            return
        self._end(call, False, sent_away(held.backend, self._params(held, held.invitation)))

    def _go_on(self, call: int) -> None:
        held = self.held.pop(call)
        self._told(held.backend)
        self._asker.again(held.effect)

    def _told(self, backend: str) -> None:
        id = self._open.pop(backend, None)
        if id is not None:
            self._asker.complete(json.dumps({"elicitationId": id}))

    def changed(self, backend: str) -> None:
        """The account at this server is another one."""
        if not self.lacks(backend):
            self._told(backend)

    def _refuse(self, call: int, error: errors.ProtocolError) -> None:
        self._end(call, False, error.raw)

    def _end(self, call: int, ok: bool, payload: Raw) -> None:
        self.forget(call)
        self._asker.end(call, ok, payload)


def client_name(info: Raw) -> str:
    """What a client is called in its `Implementation`, if it says so."""
    try:
        return json.text_member(info, "title") or json.text_member(info, "name") or ""
    except errors.Malformed:
        return ""


class _Data(Struct, frozen=True):
    reason: str = ""
    executed: str = ""


class _Error(Struct, frozen=True):
    message: str = ""
    data: _Data = _Data()


IN_VAIN: Final = _Data("insufficient_scope", "no")
"""What the account was asked for, and has not got."""


def _read(payload: Raw) -> _Error | None:
    try:
        return msgspec.json.decode(payload, type=_Error)
    except BROKEN:
        return None


def in_words(for_model: bool, backend: str, why: str, invitation: Invitation) -> Outcome:
    """For a client that can't open a page: the model can tell its user, and anybody else finds the address."""
    text = why or f"server {backend!r} needs an account of yours"
    if for_model:
        return True, errors.as_result(f"{text}. Connect it in a browser, then try again: {invitation.page}")
    return False, errors.internal(
        f"{text}; connect it at {invitation.page}",
        reason="not_connected",
        executed="no",
        backend=backend,
        url=invitation.page,
    ).raw


def sent_away(backend: str, visit: Raw) -> Raw:
    """The error that sends a user to a page (2025-11-25, client/elicitation, "URL Elicitation Required")."""
    text = f"Connect your account at {backend!r} first, then try again."
    data = {"elicitations": [visit]}
    return json.dumps({"code": errors.URL_ELICITATION_REQUIRED, "message": text, "data": data})


def declined(for_model: bool, backend: str) -> Outcome:
    """The outcome of a call whose user would not connect an account."""
    words = f"The user did not connect an account at {backend!r}."
    if for_model:
        return True, errors.as_result(words)
    return False, errors.internal(words, reason="declined", executed="no", backend=backend).raw


def connect_tool(backend: str) -> Raw:
    """What is listed of a server whose lists need an account."""
    text = f"Connects your account at the server {backend!r}: its tools are listed when that is done."
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    return json.dumps({"name": CONNECT, "description": text, "inputSchema": schema})


def connected(backend: str) -> Raw:
    """The result of that tool."""
    text = f"Your account at {backend!r} is connected: its tools are listed now."
    return json.dumps({"content": [{"type": "text", "text": text}]})
