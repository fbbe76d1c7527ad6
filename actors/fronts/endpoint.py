"""What an endpoint is made of: its connections (`upstreams`), how servers' things are named (`single`, `merged`), and
the rules of its client, which are those of a session (`session_endpoint`) or of modern requests
(`actors.exchanges.modern_endpoint`)."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw

from actors.fronts.host import Host, Tree
from actors.fronts.upstreams import Upstreams
from actors.protocol import effects as fx
from actors.protocol.capabilities import ClientBits
from actors.protocol.errors import ProtocolError
from actors.protocol.link_events import Hello
from actors.protocol.link_state import Profile
from actors.protocol.table import BackendSpec
from actors.services import Services


class Endpoint(Protocol):
    """An endpoint for one client, as its naming sees it."""

    name: str
    services: Services
    tree: Tree
    upstreams: Upstreams
    many: bool
    """Whether it serves several clients who are told of changes: what one is given is news to the others."""

    @property
    def host(self) -> Host:
        """The actor of the client."""

    @property
    def bits(self) -> ClientBits:
        """What the client can be asked, as far as servers hear of it."""

    def profile(self, spec: BackendSpec) -> Profile:
        """What a server is told of the client over a connection that is not its own."""

    def hello(self, backend: str) -> Hello | None:
        """What a server said of itself, to this client or to another."""

    def lists_itself(self, backend: str) -> bool:
        """Whether a server is asked for its lists over the connection of this client, which may see other things than
        others."""

    def send(self, effect: fx.Dispatch, backend: str, params: Raw, *, waited: bool = False) -> None:
        """Passes a request on to its server. It has `waited` where the server was not known at once."""

    def end(self, call: int, ok: bool, payload: Raw) -> None:
        """Gives a call its outcome."""

    def refuse(self, call: int, error: ProtocolError) -> None:
        """Gives a call an error of the gateway's own."""

    def save(self, fields: dict[str, bytes | None]) -> None:
        """Keeps this in the client's record, if there is one."""

    def leave(self, call: int, act: Callable[[], None]) -> None:
        """Acts as soon as no record says of this call that it was not sent."""


class Naming(Protocol):
    """How the things of an endpoint's servers are named, as the endpoint sees it."""

    merges: bool
    """Whether there are several servers, whose things have other names here."""

    @property
    def configured(self) -> bool:
        """Whether the endpoint is there, as the configuration is at present."""

    def unconfigured(self) -> ProtocolError:
        """What is said where it is not."""

    def route(self, effect: fx.Dispatch) -> None:
        """A request for a server: it is sent, answered or refused, now or later."""

    def question(self, backend: str, method: str, params: Raw) -> Raw:
        """The params of what a server asks, in the client's words."""

    def owner(self, uri: str) -> tuple[str, str] | None:
        """Whose a URI is, and what it is called there."""

    def look_for(self, uris: tuple[str, ...], then: Callable[[], None]) -> None:
        """Brings up to date what tells whose these URIs are."""
